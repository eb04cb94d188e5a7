from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ftkit.errors import BackendError
from ftkit.parallel.backend import World
from ftkit.parallel.launch import num_cores, set_threads, world_from_environment

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_without_a_launcher_the_process_is_alone() -> None:
    world = world_from_environment({})
    assert (world.rank, world.size, world.local_rank, world.local_size) == (0, 1, 0, 1)
    assert world.is_main


def test_one_process_of_a_launcher_is_the_same() -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert world_from_environment(variables) == world_from_environment({})


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "2"},
            "environment: a rank must be below the number of processes, got RANK 3 of 2, LOCAL_RANK 0 of 2\n"
            "help: start with torchrun or accelerate launch, which set all four, or unset them",
        ),
        (
            {"WORLD_SIZE": "two"},
            "environment: WORLD_SIZE must be a whole number from 1, got two\nhelp: unset WORLD_SIZE",
        ),
        ({"RANK": "-1"}, "environment: RANK must be a whole number from 0, got -1\nhelp: unset RANK"),
    ],
)
def test_an_environment_that_cannot_be_served_is_an_error(variables: dict[str, str], text: str) -> None:
    with pytest.raises(BackendError) as caught:
        world_from_environment(variables)
    assert str(caught.value) == text
    assert caught.value.exit_code == 5


def test_a_process_takes_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    try:
        assert set_threads(World(0, 1, 0, 1, torch.device("cpu"))) == num_cores() == torch.get_num_threads()
        assert os.environ["OMP_NUM_THREADS"] == str(num_cores())
        assert set_threads(World(0, 64, 0, 64, torch.device("cpu"))) == max(1, num_cores() // 64)
    finally:
        torch.set_num_threads(before)


def test_the_launchers_single_thread_is_undone() -> None:
    """accelerate sets OMP_NUM_THREADS=1 before Python starts; torch reads it at import."""
    code = (
        "from ftkit.parallel.launch import *; w = world_from_environment(); a = torch.get_num_threads();"
        "set_threads(w); print(a, torch.get_num_threads(), num_cores())"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    before, after, cores = out.stdout.split()
    assert (before, after) == ("1", cores)
