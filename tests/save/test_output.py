"""The folder of a run belongs to one run at a time, and is tried before anything is prepared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftkit.errors import CheckpointError
from ftkit.save.output import LOCK, hold

HOLDING = """
import sys, time
from pathlib import Path
from ftkit.save.output import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_while_the_first_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with hold(folder), pytest.raises(CheckpointError) as caught, hold(folder):
        raise AssertionError("held twice")
    assert str(caught.value) == (
        f"output_dir: {folder}: another run is writing there\n"
        "help: wait for its end, or give this run another output_dir"
    )
    with hold(folder):
        (folder / "kept").touch()
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match="another run is writing there"), hold(tmp_path):
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert (tmp_path / LOCK).exists()
    with hold(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/none/here"])
def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="nothing can be written there, got ") as caught, hold(tmp_path / name):
        pass
    assert caught.value.where == f"output_dir: {tmp_path / name}"


def test_a_run_that_leaves_nothing_leaves_no_folder(tmp_path: Path) -> None:
    with hold(tmp_path / "out"):
        pass
    assert not (tmp_path / "out").exists()
