from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ftkit.errors import CheckpointError
from ftkit.parallel.shards import save_plain, stored_tensors
from ftkit.parallel.zero_shards import refuse_other_world

START_ANEW = "start anew from the adapter or model in the checkpoint's folder (lora_model_dir, base_model)"


def test_a_run_without_deepspeed_says_who_wrote_the_shards(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text('{"ranks": 2, "stage": 3}')
    with pytest.raises(CheckpointError) as caught:
        stored_tensors(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: DeepSpeed wrote these shards, and this run is without it\n"
        f"help: resume with the recipe's `deepspeed` on as many processes as before, or {START_ANEW}"
    )


def test_a_run_with_deepspeed_says_that_another_backend_wrote_them(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.ones(2))
    save_plain(tmp_path / "shards", {"w": parameter}, torch.optim.SGD([parameter], lr=0.1))
    with pytest.raises(CheckpointError) as caught:
        refuse_other_world(tmp_path / "shards", 2, 3)
    assert str(caught.value) == (
        f"{tmp_path / 'shards'}: the checkpoint has no shards of ZeRO\n"
        "help: with `deepspeed` only its own checkpoints resume; take `deepspeed` out, or use another"
    )


@pytest.mark.parametrize(("ranks", "stage"), [(4, 3), (2, 2)])
def test_another_world_or_stage_is_refused(tmp_path: Path, ranks: int, stage: int) -> None:
    (tmp_path / "zero.json").write_text('{"ranks": 2, "stage": 3}')
    refuse_other_world(tmp_path, 2, 3)
    with pytest.raises(CheckpointError) as caught:
        refuse_other_world(tmp_path, ranks, stage)
    assert str(caught.value) == (
        f"{tmp_path}: ZeRO stage 3 on 2 ranks wrote this, got stage {stage} on {ranks}\n"
        f"help: resume on 2 ranks with stage 3; fsdp resumes on any number of ranks, or {START_ANEW}"
    )


@pytest.mark.parametrize("text", ["{", "{}", '{"ranks": "two", "stage": 3}', "[]"])
def test_a_damaged_note_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "zero.json").write_text(text)
    with pytest.raises(CheckpointError, match="no shards of ZeRO"):
        refuse_other_world(tmp_path, 2, 3)
