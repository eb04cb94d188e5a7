"""Whether the launcher started as many processes as it was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import psutil

from ftkit.errors import BackendError

OPTIONS = ("--num_processes", "--num-processes")


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


def parents_command() -> list[str]:
    """The command line of the process that started this one; empty where it cannot be read."""
    try:
        parent = psutil.Process().parent()
        return list(parent.cmdline()) if parent is not None else []
    except psutil.Error:
        return []
