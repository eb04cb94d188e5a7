"""Text from web pages: YAML's own writing is made plain, a person's text is left alone."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ftkit.recipe.pasted import clean
from ftkit.recipe.source import read_source

NB, ZW = "\u00a0", "\u200b"
# text -> what it says
KEPT = {
    "fences in a block scalar": ("t: |\n  ```\n  x\n  ```\nb: 1\n", {"t": "```\nx\n```\n", "b": 1}),
    "a fence at the end": ("t: |\n  ```yaml\n  x\n  ```\n", {"t": "```yaml\nx\n```\n"}),
    "hidden characters in quotes": (f"a: 'x{ZW}y'\nb: \"x{ZW}\"\n", {"a": f"x{ZW}y", "b": f"x{ZW}"}),
    "French in quotes": (
        f"a: \"Note{NB}:{NB}x{NB}# y\"\nb: 'x -{NB}y{NB}'\n",
        {"a": f"Note{NB}:{NB}x{NB}# y", "b": f"x -{NB}y{NB}"},
    ),
    "quotes over lines": (f'a: "x{NB}\n  y:{NB}z"\n', {"a": f"x{NB} y:{NB}z"}),
    "French in a block scalar": (
        f"a:\n  - b: |-\n      x{NB}:{NB}y{NB}\n\n      {NB}z\n    c:{NB}1\n",
        {"a": [{"b": f"x{NB}:{NB}y{NB}\n\n{NB}z", "c": 1}]},
    ),
    "a digit": (f"a: |1-\n  x:{NB}\n b\nc:{NB}1\n", {"a": f" x:{NB}\nb", "c": 1}),
    "flow": (f"a:{NB}[\"x:{NB}\", {{'b{NB}':{NB}1}},{NB}c]\n", {"a": [f"x:{NB}", {f"b{NB}": 1}, f"{NB}c"]}),
    "an apostrophe": (f"a: don't\nb:{NB}it's{NB}# '\nc:{NB}1\n", {"a": "don't", "b": "it's", "c": 1}),
    "block scalars in a list": (
        f"a:\n- |\n  {ZW}\n- !!str |\n x\n- &b c: |\n   x{ZW}\n",
        {"a": [f"{ZW}\n", "x\n", {"c": f"x{ZW}\n"}]},
    ),
    "tabs in quotes": ("a:\t'x:\ty\t# z'\nb: 1\t# b\n", {"a": "x:\ty\t# z", "b": 1}),
}
MEANT = {
    "indentation of a block scalar": (f"a: |\n{NB} x{NB}\n{NB} y\nb: 1\n", {"a": f"x{NB}\ny\n", "b": 1}),
    "hidden characters": (f"{ZW}a: {ZW}1\n{ZW}b:\n  {ZW}- x\n", {"a": 1, "b": ["x"]}),
    "a fence around all": (f"\n```yaml\na:{NB}1\n```\n\n", {"a": 1}),
}


@pytest.mark.parametrize(("text", "said"), (KEPT | MEANT).values(), ids=KEPT | MEANT)
def test_text_says_what_it_was_meant_to(text: str, said: object) -> None:
    assert read_source("r.yml", text).data == said
    assert clean(text).count("\n") == text.count("\n")


@given(
    st.dictionaries(st.sampled_from("abc"), st.text(f"ab:#-'\"|{NB}{ZW}\u2003`\n\t "), min_size=1),
    st.sampled_from("'\"|"),
)
def test_what_a_library_writes_in_quotes_and_blocks_is_read_back(data: dict[str, str], style: str) -> None:
    text = yaml.safe_dump(data, default_style=style, allow_unicode=True)
    assert read_source("r.yml", text).data == data
