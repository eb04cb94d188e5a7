"""A run killed while it saves: the checkpoints before stay whole, and the run goes on from them as if never stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftkit.save.checkpoint import find_checkpoint

TESTS = Path(__file__).resolve().parent.parent
RUN = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)
from standin import documents, make_run, tiny_llama
from ftkit.save.checkpoint import Checkpoints, find_checkpoint
from ftkit.train.cadence import always
from ftkit.train.options import LoopOptions
folder = Path(sys.argv[2])
run = make_run(
    tiny_llama(lora_dropout=0.05), documents(12), options=LoopOptions(save_at=always), num_epochs=2,
    checkpoints=lambda backend, net: Checkpoints(folder, backend, {}, limit=2),
)
print("ready", flush=True)
run.trainer.run(resume=find_checkpoint(folder, None, auto=True))
for e in run.heard.logged:
    print(e.step, e.loss.hex(), e.learning_rate.hex())
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", RUN, str(TESTS / "train"), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.splitlines()[1:]


def kill_while_saving(folder: Path, after_seconds: float) -> None:
    """Kill a run at some instant after it has begun to write its third checkpoint."""
    process = start(folder)
    assert process.stdout is not None
    process.stdout.readline()
    while not list(folder.glob("checkpoint-[3-9]*.partial")) and process.poll() is None:
        time.sleep(0.0005)
    time.sleep(after_seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("num_kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_kill_while_saving_leaves_the_last_checkpoint_whole(tmp_path: Path, num_kills: int) -> None:
    whole = finish(start(tmp_path / "whole"))
    random.seed(0)
    for kill in range(num_kills):
        folder = tmp_path / str(kill)
        kill_while_saving(folder, random.uniform(0, 0.03))
        newest = find_checkpoint(folder, True)
        assert newest is not None
        step = int(newest.name.split("-")[1])
        assert step >= 2
        assert finish(start(folder)) == whole[step:]
        assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-23", "checkpoint-24"]
