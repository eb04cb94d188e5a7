from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftkit.errors import BackendError
from ftkit.parallel import launcher
from ftkit.parallel.launcher import asked_of_accelerate, refuse_lost_processes

LAUNCH = ["/usr/bin/python3", "/usr/bin/accelerate", "launch"]
MODULE = ["/usr/bin/python3", "-m", "accelerate.commands.launch"]
RUN = ["-m", "ftkit.train", "recipe.yml"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([*LAUNCH, "--cpu", "--num_processes", "2", *RUN], 2),
        ([*LAUNCH, "--num_processes=4", *RUN], 4),
        ([*MODULE, "--num-processes", "3", *RUN], 3),
        ([*LAUNCH, "--cpu", *RUN], 1),
        (["bash", "-c", "accelerate launch --num_processes 2"], 1),
        (["python", "-m", "ftkit.train", "--num_processes", "2"], 1),
        ([], 1),
    ],
)
def test_processes_asked_for(command: list[str], expected: int) -> None:
    assert asked_of_accelerate(command) == expected


def test_one_of_two_is_refused_unless_the_world_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "parents_command", lambda: [*LAUNCH, "--cpu", "--num_processes", "2", *RUN])
    refuse_lost_processes({"WORLD_SIZE": "2"})
    with pytest.raises(BackendError) as caught:
        refuse_lost_processes({})
    assert str(caught.value) == (
        "accelerate launch --num_processes 2: accelerate was asked for 2 processes and started one\n"
        "help: accelerate launch --multi_gpu --num_processes 2 starts 2, on CPUs too; so does "
        "torchrun --nproc_per_node 2"
    )


def test_the_real_accelerate_falls_into_the_trap_and_is_caught(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("import os\nfrom ftkit.parallel.launcher import refuse_lost_processes as r\nr(os.environ)\n")
    options = ["--cpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    for wanted, fails in (("1", False), ("2", True)):
        command = [sys.executable, "-m", "accelerate.commands.launch", *options, "--num_processes", wanted, str(script)]
        environment = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
        assert ("asked for 2 processes and started one" in done.stderr) is fails, done.stderr
        assert (done.returncode != 0) is fails
