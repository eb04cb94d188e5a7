"""A run killed while it saves: the checkpoints before stay whole, and the run goes on from them as if never stopped."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from killed import NUM_STEPS, train

from ftkit.save.checkpoint import find_checkpoint

LAST_TWO = sorted(f"checkpoint-{step}" for step in (NUM_STEPS - 1, NUM_STEPS))
TESTS = Path(__file__).resolve().parent.parent


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ForkServerContext:
    """A process that has imported everything once and forks the runs."""
    paths = [str(TESTS.parent / "src"), str(TESTS / "save"), str(TESTS / "train")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed"])
    return context


def start(server: ForkServerContext, folder: Path, killed_at: int | None = None) -> BaseProcess:
    process = server.Process(target=train, args=(folder, folder.with_suffix(".txt"), killed_at))
    process.start()
    return process


def finish(server: ForkServerContext, folder: Path) -> list[str]:
    process = start(server, folder)
    process.join(120)
    assert process.exitcode == 0
    return folder.with_suffix(".txt").read_text().splitlines()


def kill_while_saving(process: BaseProcess, folder: Path, after_seconds: float) -> None:
    """Kill a run at some instant after it has begun to write its third checkpoint or a later one."""
    while not list(folder.glob("checkpoint-[3-9]*.partial")) and process.is_alive():
        time.sleep(0.0005)
    time.sleep(after_seconds)
    process.kill()
    process.join()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_kill_while_saving_leaves_the_last_checkpoint_whole(tmp_path: Path, server: ForkServerContext) -> None:
    whole = finish(server, tmp_path / "whole")
    folder = tmp_path / "killed"
    process = start(server, folder, killed_at=9)
    process.join(120)
    assert process.exitcode == -9
    assert names(folder) == ["checkpoint-7", "checkpoint-8", "checkpoint-9.partial"]
    assert find_checkpoint(folder, True) == folder / "checkpoint-8"
    assert finish(server, folder) == whole[8:]
    assert names(folder) == LAST_TWO


@pytest.mark.slow
def test_a_kill_at_any_instant_leaves_the_last_checkpoint_whole(tmp_path: Path, server: ForkServerContext) -> None:
    whole = finish(server, tmp_path / "whole")
    random.seed(0)
    for kill in range(20):
        folder = tmp_path / str(kill)
        kill_while_saving(start(server, folder), folder, random.uniform(0, 0.03))
        newest = find_checkpoint(folder, True)
        assert newest is not None
        step = int(newest.name.split("-")[1])
        assert step >= 2
        assert finish(server, folder) == whole[step:]
        assert names(folder) == LAST_TWO
