"""Interleave files: what they mean, and what is wrong with them, all at once and with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftkit.recipe.problems import InvalidRecipe
from ftkit.recipe.section.slices import ScaleRule, Slice, Stacking
from ftkit.recipe.slices import load_stacking

GOOD = """\
merge_method: passthrough
dtype: bfloat16
tokenizer_source: org/b
parameters:
  scale: 0.9
slices:
  - sources:
      - model: org/a
        layer_range: [0, 20]
  - sources:
      - model: org/b
        layer_range: [10, 12]
        parameters:
          scale:
            - filter: o_proj
              value: 0.0
            - value: 1.0
    parameters:
      scale:
        - {filter: "*", value: 2}
"""
BAD = """\
merge_method: slerp
dtype: bf16
int8_mask: true
slices:
  - sources:
      - model: org/a
        layer_rang: [0, 20]
        layer_range: [20, 0]
      - model: org/b
        layer_range: [0, 20]
  - source: org/a
  - sources:
      - model: org/a+org/lora
        layer_range: [0, 1.5]
        parameters:
          weight: 0.3
          scale: [0, 1]
"""
SAID = """\
bad.yml:1:15: interleave knows one merge_method, passthrough, got slerp
help: write merge_method: passthrough; layers are stacked as they are, nothing is averaged
bad.yml:2:8: no such dtype, got bf16
help: one of bfloat16, float16, float32
bad.yml:3:1: no key is called `int8_mask` here
help: there are slices, merge_method, dtype, tokenizer_source, parameters
bad.yml:5:5: passthrough takes one source a slice, got 2
help: give each model a slice of its own; one after another they are stacked
bad.yml:11:5: no key is called `source` here
help: did you mean `sources`?
bad.yml:11:5: passthrough takes one source a slice, got None
help: give each model a slice of its own; one after another they are stacked
bad.yml:13:16: a model is wanted, got org/a+org/lora
help: give a folder or hub id; an adapter is merged first, with ftkit merge
bad.yml:14:22: two whole numbers, the second larger, are wanted, got [0, 1.5]
help: write layer_range: [0, 20] for layers 0 to 19
bad.yml:16:11: no key is called `weight` here
help: there are scale
bad.yml:17:18: a number, or a list of filters with values, is wanted, got [0, 1]
help: write `- filter: o_proj` with `value: 0.0` below; what changes from layer to layer takes slices"""


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yml").write_text(GOOD, encoding="utf8")
    (tmp_path / "bad.yml").write_text(BAD, encoding="utf8")


@pytest.mark.usefixtures("_here")
def test_a_file_is_read_with_the_nearest_scale_first() -> None:
    everywhere = ScaleRule(None, 0.9)
    own = (ScaleRule("o_proj", 0.0), ScaleRule(None, 1.0), ScaleRule(None, 2.0), everywhere)
    assert load_stacking("good.yml") == Stacking(
        "good.yml",
        (
            Slice("org/a", 0, 20, "good.yml:9:22", (everywhere,)),
            Slice("org/b", 10, 12, "good.yml:12:22", own),
        ),
        "bfloat16",
        "org/b",
    )


@pytest.mark.usefixtures("_here")
def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InvalidRecipe) as caught:
        load_stacking("bad.yml")
    assert str(caught.value) == SAID
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file holds nothing"),
        ("merge_method: passthrough\n", "a list of slices is wanted, got None"),
        ("merge_method: passthrough\nslices: []\n", "a list of slices is wanted, got []"),
        ("merge_method: passthrough\nslices: [7]\n", "a mapping is wanted, got 7"),
        ("merge_method: passthrough\ntokenizer_source: union\n", "needs other embeddings, got union"),
        ("slices: [\n", "this is not YAML"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.yml").write_text(text, encoding="utf8")
    with pytest.raises(InvalidRecipe, match=r"s\.yml") as caught:
        load_stacking(str(tmp_path / "s.yml"))
    assert said in str(caught.value)
