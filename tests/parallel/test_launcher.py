from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftkit.errors import BackendError
from ftkit.parallel import launcher
from ftkit.parallel.launcher import asked_of_accelerate, refuse_lost_processes, refuse_other_backend, refuse_tasks

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


def accelerates_variables(*options: str) -> dict[str, str]:
    """What the real accelerate sets for these options."""
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    common = ["--num_processes", "2", "--num_machines", "1", "--main_process_port", "0", "--mixed_precision", "no"]
    arguments = launch_command_parser().parse_args([*options, *common, "--dynamo_backend", "no", "script.py"])
    if arguments.use_deepspeed:
        arguments.deepspeed_fields_from_accelerate_config = ""  # as where there is no configuration file
        return dict(prepare_deepspeed_cmd_env(arguments)[1])
    return dict(prepare_multi_gpu_env(arguments))


@pytest.mark.parametrize(
    ("options", "fits", "name"),
    [
        (("--multi_gpu",), {"ddp", "fsdp", "zero", "single"}, ""),
        (("--multi_gpu", "--use_fsdp"), {"fsdp"}, "FSDP"),
        (("--use_deepspeed",), {"zero"}, "DeepSpeed"),
    ],
)
def test_accelerates_backend_must_be_the_recipes(options: tuple[str, ...], fits: set[str], name: str) -> None:
    variables = accelerates_variables(*options)
    words = {"zero": "for DeepSpeed", "fsdp": "for FSDP", "ddp": "for no sharding", "single": "for no sharding"}
    for backend in words:
        if backend in fits:
            refuse_other_backend(backend, variables)
            continue
        with pytest.raises(BackendError) as caught:
            refuse_other_backend(backend, variables)
        said = f"accelerate launch: accelerate's configuration asks for {name}, the recipe {words[backend]}, got "
        assert str(caught.value).startswith(said + f"ACCELERATE_USE_{name.upper()}=true\nhelp: the recipe decides")


@pytest.mark.parametrize(
    ("variables", "nodes", "refused"),
    [
        ({}, 1, False),
        ({"SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, 1, False),  # the batch script itself
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}, 1, False),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}, 2, False),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}, 2, True),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "0"}, 1, True),
        ({"SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "0"}, 2, True),
    ],
)
def test_a_task_a_gpu_would_be_many_runs(variables: dict[str, str], nodes: int, refused: bool) -> None:
    if not refused:
        refuse_tasks(nodes, variables)
        return
    with pytest.raises(BackendError) as caught:
        refuse_tasks(nodes, variables)
    tasks = variables["SLURM_STEP_NUM_TASKS"]
    assert str(caught.value).startswith(f"srun: srun started {tasks} tasks, each of which would be a run of its own")
