"""The data side of whole recipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
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


def test_streamed_rows_are_prepared_whole_and_what_max_steps_leaves_is_told(recipe_file: Path) -> None:
    held = inputs(recipe_file, "sample_packing=false", "max_steps=3")
    streamed = inputs(recipe_file, "sample_packing=false", "max_steps=3", "streaming=true")
    assert streamed.prepared.report.num_train == held.prepared.report.num_train == 10
    assert streamed.prepared.train.digest() == held.prepared.train.digest()
    assert (streamed.steps.num_steps, streamed.steps.steps_per_epoch) == (3, 5)
    told = "streaming: all rows were prepared, and max_steps uses 3 of 5 steps of them; split: train[:N] prepares"
    assert [note.startswith(told) for note in streamed.notes if "streaming" in note] == [True]
    assert not [note for note in held.notes if "streaming" in note]
    assert not [note for note in inputs(recipe_file, "streaming=true").notes if "streaming" in note]


RANK = """
import json, sys
from ftkit import load_recipe
from ftkit.inputs import load_inputs
recipe = load_recipe(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
made = load_inputs(recipe, recipe.model.base_model, world_size=3)
steps = [made.steps.micro_batches(step, int(sys.argv[2])) for step in range(made.steps.num_steps)]
print(json.dumps([made.prepared.report.train.cache, made.prepared.train.digest(), steps]))
"""


def test_three_processes_prepare_once_and_have_equally_many_packs_in_every_step(recipe_file: Path) -> None:
    text = recipe_file.read_text(encoding="utf8").replace("val_set_size: 0.5", "num_epochs: 2")
    text = text.replace("sequence_len: 512", "sequence_len: 64")
    recipe_file.write_text(text, encoding="utf8")
    sharegpt_rows(recipe_file.parent / "rows.jsonl", repeat=11)
    command = [sys.executable, "-c", RANK, str(recipe_file)]
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src"), "HF_HUB_OFFLINE": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank)], env=where, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    said = [json.loads(rank.communicate("go\n", timeout=100)[0]) for rank in ranks]
    assert sorted(cache.partition(":")[0] for cache, _, _ in said) == ["hit", "hit", "miss"]
    assert len({digest for _, digest, _ in said}) == 1
    steps = list(zip(*(steps for _, _, steps in said), strict=True))
    assert [len({len(batches) for batches in step}) for step in steps] == [1] * len(steps)
    seen = [[document for batches in step for batch in batches for document in batch] for step in steps]
    num_documents, half = 44, len(steps) // 2
    assert sorted(chain(*seen[:half])) == sorted(chain(*seen[half:])) == list(range(num_documents))
    assert len(seen[half - 1]) < len(seen[0])  # the documents do not fill the last step
    assert not list((recipe_file.parent / "cache").glob("*.partial"))
