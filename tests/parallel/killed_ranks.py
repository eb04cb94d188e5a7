"""A run of several ranks that saves after every step, as the target of a test that kills them all."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from cases import CASES, start, with_steps

from ftkit.parallel.backend import World
from ftkit.parallel.process_group import connect
from ftkit.recipe.section.backend import BackendSection
from ftkit.save.checkpoint import Checkpoints, find_checkpoint
from ftkit.save.state import TrainerState

STEPS = 6


def train(rank: int, size: int, port: int, section: BackendSection, models: Path, folder: Path) -> None:
    """Go on from the newest whole checkpoint in `folder`, or from the start, saving at every step.

    Rank 0 writes each step's loss, exactly, to `folder`/losses.
    """
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    world = World(rank, size, rank, size, torch.device("cpu"))
    newest = find_checkpoint(folder, None, auto=True)
    connect(world, 120)
    running = start(with_steps(CASES["qlora-packed"], STEPS), world, models, section)
    checkpoints = Checkpoints(folder, running.backend, {}, limit=2)
    state = TrainerState() if newest is None else checkpoints.resume(newest)
    while state.step < STEPS:
        losses, _ = running.train(range(state.step, state.step + 1))
        state.step += 1
        if world.is_main:
            with (folder / "losses").open("a", encoding="ascii") as file:
                file.write(f"{state.step} {losses[0].hex()}\n")
        checkpoints.save(state)
    running.batches.close()
    running.backend.close()
