"""Numbers and booleans of YAML 1.2."""

import pytest

from ftkit.recipe.scalars import read_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 2e-4),
        ("1e5", 1e5),
        (".5", 0.5),
        ("3.", 3.0),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("True", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("Null", None),
    ],
)
def test_what_has_a_value(text, value):
    assert read_scalar(text) == value
    assert type(read_scalar(text)) is type(value)


@pytest.mark.parametrize("text", ["off", "no", "yes", "y", "1:30", "1_000", "true8192", "6299b5a", "e5", ".", "1.2.3"])
def test_what_stays_text(text):
    assert read_scalar(text) == text
