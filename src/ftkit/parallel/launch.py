"""Who this process is, from the variables that torchrun and accelerate set, and how many threads it may use."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from ftkit.errors import BackendError
from ftkit.parallel.backend import World
from ftkit.parallel.launcher import refuse_lost_processes


def world_from_environment(environment: Mapping[str, str] | None = None) -> World:
    """Return this process's place; without a launcher, the only process of a world of one.

    Args:
        environment: the variables to read; None for the process's own.

    Raises:
        BackendError: a variable is not a number or contradicts another, or there are more processes than devices.
    """
    variables = os.environ if environment is None else environment
    if environment is None:
        refuse_lost_processes(variables)
    size = read_number(variables, "WORLD_SIZE", 1, least=1)
    rank = read_number(variables, "RANK", 0, least=0)
    local_size = read_number(variables, "LOCAL_WORLD_SIZE", size, least=1)
    local_rank = read_number(variables, "LOCAL_RANK", 0, least=0)
    if rank >= size or local_rank >= local_size:
        raise BackendError(
            f"a rank must be below the number of processes, got RANK {rank} of {size}, "
            f"LOCAL_RANK {local_rank} of {local_size}",
            where="environment",
            help="start with torchrun or accelerate launch, which set all four, or unset them",
        )
    return World(rank, size, local_rank, local_size, choose_device(local_rank))


def set_threads(world: World) -> int:
    """Let this process compute on its share of the cores, and return how many that are.

    accelerate and torchrun set OMP_NUM_THREADS=1, for one process too, which leaves all cores but one idle. The
    variable is changed as well: libraries with an OpenMP of their own (bitsandbytes) read it when they are loaded.
    """
    share = max(1, num_cores() // world.local_size)
    os.environ["OMP_NUM_THREADS"] = str(share)
    torch.set_num_threads(share)
    return share


def choose_device(local_rank: int) -> torch.device:
    """The GPU of this local rank, made current, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise BackendError(
            f"local rank {local_rank} has no GPU, got {torch.cuda.device_count()} visible",
            where=f"rank {local_rank}",
            help="start one process a GPU, or look at CUDA_VISIBLE_DEVICES",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def num_cores() -> int:
    """Cores this process may run on (a container or taskset may allow fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_number(variables: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """A whole number out of the environment."""
    text = variables.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise BackendError(
            f"{name} must be a whole number from {least}, got {text}", where="environment", help=f"unset {name}"
        )
    return int(text)
