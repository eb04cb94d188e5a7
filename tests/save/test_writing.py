"""A disk that is full ends a run with a message, and leaves what was whole."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from standin import documents, folder_names, make_run, tiny_llama

from ftkit.cli.main import main
from ftkit.errors import CheckpointError
from ftkit.parallel.shards import GO_ON
from ftkit.save.checkpoint import Checkpoints
from ftkit.save.writing import writing
from ftkit.train.cadence import always
from ftkit.train.options import LoopOptions
from tiny import sharegpt_rows, tiny_model

FULL = Path("/dev/full")  # every write to it says: no space left on device
RECIPE = """base_model: {folder}/model
datasets:
  - path: {folder}/rows.jsonl
    type: sharegpt
output_dir: {folder}/out
adapter: lora
lora_target_linear: true
learning_rate: 1e-3
max_steps: 1
"""


def test_a_full_disk_while_saving_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    def extra(partial: Path) -> None:
        if partial.name == "checkpoint-2.partial":
            raise OSError(errno.ENOSPC, "No space left on device", str(partial / "model.safetensors"))

    run = make_run(
        tiny_llama(lora_dropout=0.0),
        documents(3),
        options=LoopOptions(save_at=always),
        checkpoints=lambda backend, net: Checkpoints(tmp_path, backend, {}, extra=extra),
    )
    with pytest.raises(CheckpointError) as caught:
        run.trainer.run()
    assert str(caught.value) == (
        f"{tmp_path}/checkpoint-2.partial/model.safetensors: the checkpoint cannot be written, "
        f"got No space left on device\nhelp: {GO_ON}"
    )
    assert folder_names(tmp_path) == ["checkpoint-1"]


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    "name",
    ["adapter_model.safetensors.partial", "adapter_config.json", "tokenizer.json", "metrics.jsonl", "recipe.yml"],
)
def test_a_full_disk_is_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    tiny_model(tmp_path / "model")
    sharegpt_rows(tmp_path / "rows.jsonl")
    (tmp_path / "recipe.yml").write_text(RECIPE.format(folder=tmp_path), encoding="utf8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(FULL)
    if name == "metrics.jsonl":  # written anew at the start, under a passing name
        (tmp_path / "out" / "metrics.jsonl.partial").symlink_to(FULL)
    assert main(["train", str(tmp_path / "recipe.yml")]) == 6
    text = capsys.readouterr().err
    assert " cannot be written, got No space left on device\nhelp: make room on the disk" in text
    assert "Traceback" not in text


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing("it", tmp_path):
        raise ZeroDivisionError
    with pytest.raises(Exception, match="a bug"), writing("it", tmp_path):
        raise Exception("a bug")
