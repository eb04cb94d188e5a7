from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ftkit.parallel.reaper import reaping

SLEEP = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"]


def test_what_is_left_after_a_failure_is_killed_and_nothing_else(tmp_path: Path) -> None:
    rank = subprocess.Popen(SLEEP, start_new_session=True)  # as torch starts ranks
    other = subprocess.Popen(SLEEP)
    try:
        with reaping(tmp_path, kill_seconds=0.5):
            assert rank.poll() is None
            (tmp_path / "attempt_0" / "1").mkdir(parents=True)
            (tmp_path / "attempt_0" / "1" / "error.json").touch()
            assert rank.wait(timeout=20) == -9
            assert other.poll() is None
    finally:
        for process in (rank, other):
            process.kill()
            process.wait()


def test_without_a_failure_nothing_is_killed_and_the_end_is_at_once(tmp_path: Path) -> None:
    rank = subprocess.Popen(SLEEP, start_new_session=True)
    try:
        start = time.monotonic()
        with reaping(tmp_path, kill_seconds=0.0):
            time.sleep(1.5)
        assert time.monotonic() - start < 5
        assert rank.poll() is None
    finally:
        rank.kill()
        rank.wait()
