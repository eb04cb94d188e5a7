"""A run that saves after every step, as the target of a process that a test kills."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from standin import documents, make_run, tiny_llama

from ftkit.save.checkpoint import Checkpoints, find_checkpoint
from ftkit.train.cadence import always
from ftkit.train.options import LoopOptions

NUM_STEPS = 24


def train(folder: Path, output: Path, killed_at: int | None = None) -> None:
    """Train from the newest checkpoint in `folder`, or from the start; write losses and rates to `output`.

    With `killed_at` the process dies in the middle of writing that step's checkpoint.
    """
    torch.set_num_threads(1)

    def die(partial: Path) -> None:
        if partial.name == f"checkpoint-{killed_at}.partial":
            os.kill(os.getpid(), signal.SIGKILL)

    run = make_run(
        tiny_llama(lora_dropout=0.05),
        documents(NUM_STEPS // 2),
        options=LoopOptions(save_at=always),
        num_epochs=2,
        checkpoints=lambda backend, net: Checkpoints(folder, backend, {}, limit=2, extra=die),
    )
    run.trainer.run(resume=find_checkpoint(folder, None, auto=True))
    lines = [f"{e.step} {e.loss.hex()} {e.learning_rate.hex()}" for e in run.heard.logged]
    output.write_text("\n".join(lines))
