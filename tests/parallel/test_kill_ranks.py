"""All ranks killed at any instant, again and again: the newest whole checkpoint loads and the losses stay the same."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import socket
import time
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest
from killed_ranks import STEPS, train

from ftkit.recipe.section.backend import BackendSection
from ftkit.recipe.section.frozen import FrozenMap
from tiny import tiny_model

SECTIONS = {
    "ddp": BackendSection(),
    "fsdp": BackendSection(fsdp=("full_shard",)),
    "zero2": BackendSection(deepspeed=FrozenMap({"zero_optimization": {"stage": 2}})),
    "zero3": BackendSection(deepspeed=FrozenMap({"zero_optimization": {"stage": 3}})),
}
IN_CI, THOROUGH = 5, 20  # kills a backend
RANKS = 2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_model(folder / "llama", vocab_size=300, seed=1)
    return folder


@pytest.fixture(scope="module")
def context() -> BaseContext:
    """Processes that are forked from one that has imported everything already."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["killed_ranks", "deepspeed"])
    return server


def start_ranks(context: Any, section: BackendSection, models: Path, folder: Path) -> list[Any]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    ranks = [context.Process(target=train, args=(rank, RANKS, port, section, models, folder)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    return ranks


def losses(folder: Path) -> list[tuple[int, str]]:
    """Every loss that was ever written, with its step; a line that was cut off by a kill is none."""
    if not (folder / "losses").is_file():
        return []
    lines = (folder / "losses").read_text().split("\n")[:-1]
    return [(int(step), loss) for step, loss in (line.split(" ") for line in lines)]


def finish(ranks: list[Any]) -> None:
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0] * RANKS


def kill_and_resume(context: Any, section: BackendSection, models: Path, folder: Path, kills: int) -> None:
    finish(start_ranks(context, section, models, folder / "warm"))  # imports, and what DeepSpeed compiles once
    begin = time.monotonic()
    finish(start_ranks(context, section, models, folder / "whole"))
    seconds, want = time.monotonic() - begin, dict(losses(folder / "whole"))
    assert sorted(want) == list(range(1, STEPS + 1))
    assert len(set(want.values())) == STEPS
    chance, done, rounds = random.Random(0), 0, 0
    while done < kills:
        rounds += 1
        broken = folder / f"broken-{rounds}"
        while done < kills:
            ranks = start_ranks(context, section, models, broken)
            time.sleep(chance.uniform(0.3, 1.0) * seconds)
            alive = [rank for rank in ranks if rank.is_alive()]
            for rank in alive:
                rank.kill()
            for rank in ranks:
                rank.join(30)
            if len(alive) < RANKS:  # it was done, or nearly: a new one is broken off
                break
            done += 1
        finish(start_ranks(context, section, models, broken))
        seen = losses(broken)
        assert {step for step, _ in seen} == set(want)
        assert [(step, loss) for step, loss in seen if loss != want[step]] == []
        shutil.rmtree(broken)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SECTIONS)
def test_ranks_killed_at_random_go_on_as_if_never_stopped(
    name: str, context: Any, models: Path, tmp_path: Path
) -> None:
    kill_and_resume(context, SECTIONS[name], models, tmp_path, IN_CI)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SECTIONS)
def test_ranks_killed_very_often_go_on_as_if_never_stopped(
    name: str, context: Any, models: Path, tmp_path: Path
) -> None:
    kill_and_resume(context, SECTIONS[name], models, tmp_path, THOROUGH)
