"""Whether a launcher does what the recipe needs: as many processes as it was asked for, and no backend of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import psutil

from ftkit.errors import BackendError

OPTIONS = ("--num_processes", "--num-processes")

# Variables that `accelerate launch` sets for the backend that its configuration or its options name.
OF_ACCELERATE: Mapping[str, tuple[str, str]] = {  # variable -> (backend of ftkit, its name)
    "ACCELERATE_USE_DEEPSPEED": ("zero", "DeepSpeed"),
    "ACCELERATE_USE_FSDP": ("fsdp", "FSDP"),
    "ACCELERATE_USE_MEGATRON_LM": ("megatron", "Megatron-LM"),
}
OF_RECIPES: Mapping[str, str] = {
    "zero": "for DeepSpeed",
    "fsdp": "for FSDP",
    "ddp": "for no sharding",
    "single": "for no sharding",
}


def refuse_other_backend(chosen: str, variables: Mapping[str, str] = os.environ) -> None:
    """Refuse a run whose recipe says one backend and accelerate's configuration another.

    Args:
        chosen: the recipe's backend, by its name in the catalog.
        variables: of the environment.

    Raises:
        BackendError: naming both.
    """
    for variable, (backend, name) in OF_ACCELERATE.items():
        if variables.get(variable, "").lower() in {"true", "1"} and backend != chosen:
            raise BackendError(
                f"accelerate's configuration asks for {name}, the recipe {OF_RECIPES[chosen]}, got {variable}="
                f"{variables[variable]}",
                where="accelerate launch",
                help="the recipe decides (deepspeed, fsdp and fsdp_config): run `accelerate config` again without a "
                "backend, give --config_file with a plain one, or start with ftkit train",
            )


def refuse_lost_processes(variables: Mapping[str, str]) -> None:
    """Refuse to run alone under `accelerate launch --cpu --num_processes N`, which starts one process and exits with 0.

    It can be known only from the launcher's own command line: it sets neither RANK nor WORLD_SIZE.

    Args:
        variables: of the environment.

    Raises:
        BackendError: the launcher was asked for several processes, and this is the only one.
    """
    if "WORLD_SIZE" in variables:
        return
    wanted = asked_of_accelerate(parents_command())
    if wanted > 1:
        raise BackendError(
            f"accelerate was asked for {wanted} processes and started one",
            where=f"accelerate launch --num_processes {wanted}",
            help=f"accelerate launch --multi_gpu --num_processes {wanted} starts {wanted}, on CPUs too; so does "
            f"torchrun --nproc_per_node {wanted}",
        )


def asked_of_accelerate(command: Sequence[str]) -> int:
    """Processes that `command` asks accelerate for; 1 when it does not say, or is another program's."""
    is_accelerate = any(Path(word).name in {"accelerate", "accelerate-launch"} for word in command[:2])
    if not is_accelerate and "accelerate.commands.launch" not in command[:4]:
        return 1
    words = [part for word in command for part in word.split("=", 1)]
    return next((int(value) for option, value in pairwise(words) if option in OPTIONS and value.isdecimal()), 1)


def refuse_tasks(nodes: int, variables: Mapping[str, str] = os.environ) -> None:
    """Refuse to start a run in each of the tasks that SLURM's srun started; one task a node starts it together.

    Args:
        nodes: `--nnodes`.
        variables: of the environment; srun sets SLURM_STEP_NUM_TASKS and, by node, SLURM_LOCALID.

    Raises:
        BackendError: there are more tasks than nodes of the run.
    """
    tasks, local = variables.get("SLURM_STEP_NUM_TASKS", ""), variables.get("SLURM_LOCALID", "")
    if tasks.isdecimal() and int(tasks) > 1 and (int(tasks) != nodes or local not in {"", "0"}):
        raise BackendError(
            f"srun started {tasks} tasks, each of which would be a run of its own, got --nnodes {nodes}",
            where="srun",
            help="start one task a node (--ntasks-per-node=1), each with --nnodes, --node-rank and --rdzv; ftkit "
            "starts one process a GPU; examples/slurm/train.sbatch does it",
        )


def parents_command() -> list[str]:
    """The command line of the process that started this one; empty where it cannot be read."""
    try:
        parent = psutil.Process().parent()
        return list(parent.cmdline()) if parent is not None else []
    except psutil.Error:
        return []
