"""The data side of whole recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftkit import load_recipe
from ftkit.inputs import Inputs, load_inputs
from tiny import byte_tokenizer, sharegpt_rows


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    byte_tokenizer(tmp_path / "tokenizer")
    sharegpt_rows(tmp_path / "rows.jsonl", repeat=5)
    text = f"""
base_model: {tmp_path / "tokenizer"}
datasets: [{{path: {tmp_path / "rows.jsonl"}, type: sharegpt}}]
chat_template: chatml
sequence_len: 512
sample_packing: true
micro_batch_size: 2
val_set_size: 0.5
dataset_prepared_path: {tmp_path / "cache"}
output_dir: {tmp_path / "out"}
"""
    (tmp_path / "recipe.yml").write_text(text, encoding="utf8")
    return tmp_path / "recipe.yml"


def inputs(file: Path, *overrides: str, **keys: Any) -> Inputs:
    recipe = load_recipe(str(file), overrides)
    return load_inputs(recipe, recipe.model.base_model, **keys)


def test_held_out_documents_that_fill_no_micro_batch_are_not_packed(recipe_file: Path) -> None:
    few = inputs(recipe_file)
    assert [len(pack) for pack in few.evaluation_packs] == [1] * 10
    assert few.notes == (
        "eval_sample_packing: 10 documents fill 1 of the 2 packs that are evaluated at once, so they are not packed; "
        "the loss is the same",
    )


def test_held_out_documents_are_packed_where_they_are_enough(recipe_file: Path) -> None:
    enough = inputs(recipe_file, "micro_batch_size=1")
    assert (len(enough.evaluation_packs), enough.notes) == (1, ())
    asked = inputs(recipe_file, "eval_sample_packing=false")
    assert (len(asked.evaluation_packs), asked.notes) == (10, ())


def test_the_prepared_data_lies_where_the_recipe_says(recipe_file: Path) -> None:
    assert inputs(recipe_file).prepared.report.train.cache.startswith("miss")
    again = inputs(recipe_file).prepared.report.train
    assert (again.cache, Path(again.folder).parent) == ("hit", recipe_file.parent / "cache")


def test_the_prepared_data_may_lie_at_home(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(recipe_file.parent / "home"))
    folder = inputs(recipe_file, "dataset_prepared_path=~/cache").prepared.report.train.folder
    assert Path(folder).parent == recipe_file.parent / "home" / "cache"


def test_broken_prepared_data_is_told_in_a_note(recipe_file: Path) -> None:
    folder = Path(inputs(recipe_file, "val_set_size=0").prepared.report.train.folder)
    (folder / "prepared.json").write_text("{", encoding="utf8")
    (note,) = inputs(recipe_file, "val_set_size=0").notes
    assert note.startswith("prepared data: miss: what was prepared is broken and is made anew (")


def test_tokens_that_the_recipe_adds_are_counted(recipe_file: Path) -> None:
    assert inputs(recipe_file).tokens.added == {}
    overrides = ("tokens=[<zork>, a]", "special_tokens.eos_token=<end>", "token_descriptions={<end>: the end}")
    read = inputs(recipe_file, *overrides)
    assert [read.tokenizer.convert_ids_to_tokens(number) for number in read.tokens.added] == ["<end>", "<zork>"]
    words = read.tokenizer("the end", add_special_tokens=False)["input_ids"]
    assert list(read.tokens.added.values()) == [tuple(words), ()]
    assert read.tokens.known == len(read.tokenizer) - 2
