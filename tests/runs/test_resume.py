"""A run that is stopped and resumed is the run that was never stopped, bit for bit on a CPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ftkit.cli.main import main
from ftkit.errors import CheckpointError
from ftkit.recipe import load_recipe
from ftkit.run import run
from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets:
  - path: {folder}/rows.jsonl
    type: sharegpt
dataset_prepared_path: {folder}/prepared
val_set_size: 2
output_dir: {folder}/whole
adapter: qlora
load_in_4bit: true
lora_r: 4
lora_alpha: 8
lora_dropout: 0.05
lora_target_linear: true
optimizer: {optimizer}
learning_rate: 1e-2
micro_batch_size: 2
num_epochs: 2
evals_per_epoch: 1
save_steps: 2
logging_steps: 1
"""
SAME = ("step", "epoch", "loss", "grad_norm", "learning_rate", "target_tokens", "eval_loss")


def lines(folder: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl says of training, timings left out."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf8")
    return [{key: line[key] for key in SAME if key in line} for line in map(json.loads, text.splitlines())]


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_bnb_8bit"])
def test_a_resumed_run_equals_an_uninterrupted_one(optimizer: str, tmp_path: Path) -> None:
    tiny_model(tmp_path / "model")
    sharegpt_rows(tmp_path / "rows.jsonl", repeat=3)  # 10 train, 2 held out: 5 steps an epoch
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(RECIPE.format(folder=tmp_path, optimizer=optimizer), encoding="utf8")
    assert main(["train", str(recipe)]) == 0
    whole = tmp_path / "whole"
    assert [line["step"] for line in lines(whole) if "loss" in line] == list(range(1, 11))
    weights = load_file(whole / "adapter_model.safetensors")
    for stopped_at in (2, 6):
        part = tmp_path / f"stopped-{stopped_at}"
        shutil.copytree(whole, part)  # as a kill after this checkpoint leaves it, with later lines in metrics.jsonl
        for later in part.glob("checkpoint-*"):
            if int(later.name.split("-")[1]) > stopped_at:
                shutil.rmtree(later)
        assert main(["train", str(recipe), f"output_dir={part}", "resume_from_checkpoint=true"]) == 0
        assert lines(part) == lines(whole)
        resumed = load_file(part / "adapter_model.safetensors")
        assert resumed.keys() == weights.keys()
        assert all(bool((resumed[name] == weights[name]).all()) for name in weights)


def test_resuming_where_nothing_was_saved_is_an_error(tmp_path: Path) -> None:
    tiny_model(tmp_path / "model")
    sharegpt_rows(tmp_path / "rows.jsonl")
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(RECIPE.format(folder=tmp_path, optimizer="adamw_torch"), encoding="utf8")
    with pytest.raises(CheckpointError, match="no whole checkpoint to resume from"):
        run(load_recipe(recipe, ["resume_from_checkpoint=true"]))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, rows, a recipe and its finished run of one step."""
    folder = tmp_path_factory.mktemp("finished")
    tiny_model(folder / "model")
    sharegpt_rows(folder / "rows.jsonl", repeat=2)
    text = RECIPE.format(folder=folder, optimizer="adamw_torch") + "max_steps: 1\nauto_resume_from_checkpoints: true\n"
    (folder / "recipe.yml").write_text(text, encoding="utf8")
    assert main(["train", str(folder / "recipe.yml")]) == 0
    return folder


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["train", str(folder / "recipe.yml")]) == 6
    told = capsys.readouterr()
    assert "Done" not in told.out
    return told.err


def test_a_finished_run_of_other_rows_is_not_done(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "rows.jsonl").read_text(encoding="utf8")
    (finished / "rows.jsonl").write_text(before.replace("blue", "green"), encoding="utf8")
    text = refused(finished, capsys)
    assert "checkpoint-1: the checkpoint was made by another recipe\n  training documents: " in text
    assert "weights" not in text
    (finished / "rows.jsonl").write_text(before, encoding="utf8")
    assert main(["train", str(finished / "recipe.yml")]) == 0


def test_a_run_from_another_base_is_not_resumed(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.move(finished / "model", finished / "model-before")
    tiny_model(finished / "model", seed=1)
    text = refused(finished, capsys)
    shutil.rmtree(finished / "model")
    shutil.move(finished / "model-before", finished / "model")
    assert "another recipe\n  weights of base_model: " in text
    assert "documents" not in text
