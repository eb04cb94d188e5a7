"""The guard of one process; what it does among several is told in test_processes.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import torch

from ftkit.parallel.backend import World
from ftkit.parallel.guard import Guard

ALONE = World(0, 1, 0, 1, torch.device("cpu"))
STALL = """
import sys, time, torch
from pathlib import Path
from ftkit.cli.main import guarded
from ftkit.parallel.backend import World
from ftkit.parallel.guard import Guard
def main():
    with Guard(World(0, 1, 0, 1, torch.device("cpu")), 1.5, Path(sys.argv[1]), {}) as beat:
        for step in range(4):
            time.sleep(0.6)
            beat(f"step {step}")
        time.sleep(60)
sys.exit(guarded(main))
"""


def test_one_process_without_a_timeout_starts_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with Guard(ALONE, None, tmp_path, {}) as beat:
        beat("something")
        assert threading.active_count() == before


def test_one_process_with_a_timeout_is_watched_and_left_in_order(tmp_path: Path) -> None:
    before = threading.active_count()
    with Guard(ALONE, 60, tmp_path, {}):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_beats_keep_a_process_alive_and_their_end_ends_it(tmp_path: Path, root: Path) -> None:
    """Four beats 0.6 s apart are no stall of 1.5 s; the silence after them is."""
    command = [sys.executable, "-c", STALL, str(tmp_path)]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(root / "src")}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 5
    said = done.stderr[done.stderr.index("error: ") :]
    assert said.startswith("error: rank 0: nothing has moved for 1.5 s, the last here was step 3\nhelp: ")
    assert said.count("\n") == 2  # and no word of a signal
    assert "in main" in (tmp_path / "stacks-rank-0.txt").read_text(encoding="utf8")
