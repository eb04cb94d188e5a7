"""Checkpoints in DeepSpeed's own files, one of states per rank, with a note of what they fit.

The files are pickles, which can run code when they are read: resume only from checkpoints whose origin you trust.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import distributed as dist

from ftkit.errors import CheckpointError
from ftkit.parallel.shards import GO_ON, OF_ZERO

TAG = "deepspeed"  # DeepSpeed's name for the folder inside


def save_zero(engine: Any, folder: Path, num_ranks: int, stage: int) -> None:
    """Write what is trained and the optimizer's state; every rank calls it.

    Raises:
        CheckpointError: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        engine.save_checkpoint(str(folder), tag=TAG, save_latest=False, exclude_frozen_parameters=True)
        if dist.get_rank() == 0:
            (folder / OF_ZERO).write_text(json.dumps({"ranks": num_ranks, "stage": stage}) + "\n", encoding="utf8")
    except (OSError, RuntimeError) as failed:
        raise CheckpointError(
            f"the shards cannot be written, got {type(failed).__name__}: {failed}", where=str(folder), help=GO_ON
        ) from failed
    dist.barrier()


def load_zero(engine: Any, folder: Path, num_ranks: int, stage: int) -> None:
    """Read what `save_zero` wrote, into the same number of ranks and the same stage.

    Raises:
        CheckpointError: it was written otherwise, or cannot be read.
    """
    refuse_other_world(folder, num_ranks, stage)
    try:
        path, _ = engine.load_checkpoint(str(folder), tag=TAG, load_module_strict=False, load_lr_scheduler_states=False)
    except (OSError, RuntimeError, AssertionError, EOFError) as failed:
        raise unreadable(folder, f"{type(failed).__name__}: {failed}") from failed
    if path is None:
        raise unreadable(folder, "no files of DeepSpeed")


def refuse_other_world(folder: Path, num_ranks: int, stage: int) -> None:
    """Raise unless the note says what this run has."""
    try:
        note = json.loads((folder / OF_ZERO).read_text(encoding="utf8"))
        wrote = (int(note["ranks"]), int(note["stage"]))
    except (OSError, ValueError, KeyError, TypeError) as absent:
        raise CheckpointError(
            "the checkpoint has no shards of ZeRO",
            where=str(folder),
            help="with `deepspeed` only its own checkpoints resume; take `deepspeed` out, or use another",
        ) from absent
    if wrote != (num_ranks, stage):
        raise CheckpointError(
            f"ZeRO stage {wrote[1]} on {wrote[0]} ranks wrote this, got stage {stage} on {num_ranks}",
            where=str(folder),
            help=f"resume on {wrote[0]} ranks with stage {wrote[1]}; fsdp resumes on any number of ranks, or start "
            "anew from the adapter or model in the checkpoint's folder (lora_model_dir, base_model)",
        )


def unreadable(folder: Path, got: str) -> CheckpointError:
    """The error of a checkpoint that is damaged."""
    return CheckpointError(
        f"the shards cannot be read, got {got}", where=str(folder), help="resume from another checkpoint"
    )
