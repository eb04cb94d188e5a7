from __future__ import annotations

import pytest

from ftkit.report.layout import clock, fit, hanging, printable


def test_values_hang_under_their_first_line() -> None:
    assert hanging("  data", "150 documents, 15 held out\nand more", 8, 30) == [
        "  data  150 documents, 15 held",
        "        out",
        "        and more",
    ]


def test_a_path_is_never_broken() -> None:
    path = "/very/long/path/" + "x" * 60
    assert path in hanging("  output", path, 10, 40)[0]
    assert hanging("  empty", "", 10, 40) == ["  empty"]


def test_a_line_holds_the_parts_that_fit() -> None:
    assert fit(["abc", "def", "ghi"], 13) == "abc  def  ghi"
    assert fit(["abc", "def", "ghi"], 12) == "abc  def"
    assert fit(["abcdef"], 4) == "abcd"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (90061, "1 d 1:01:01")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_what_a_stream_cannot_show_is_a_question_mark() -> None:
    assert printable("Zaunkönig \N{BIRD}\n", "ascii") == "Zaunk?nig ?\n"
    assert printable("Zaunkönig", "latin-1") == "Zaunkönig"
    assert printable("\x1b[2Jgone\r\x07", "utf-8") == "?[2Jgone??"
    assert printable("\ud83d", "utf-8") == "?"
