"""The processes of a run finding each other, and leaving in order.

The group is made after the data is prepared: ranks that share a disk wait for each other at the cache's file lock,
which knows no time-out, and not in a collective, which does. Small values (sums, flags, records) go over gloo on the
CPU; tensors on a GPU go over NCCL.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ftkit.errors import BackendError
from ftkit.parallel.backend import World
from ftkit.parallel.watchdog import DEFAULT_SECONDS

# A collective gives up this long after the watchdog would: the watchdog says what every rank was doing.
MARGIN_SECONDS = 60


def connect(world: World, timeout_seconds: int | None = None) -> None:
    """Join this process to the others of `world`; the address is where the launcher says.

    Args:
        timeout_seconds: `ddp_timeout`, in which something must move; None is 30 minutes.

    Raises:
        BackendError: the others did not come.
    """
    kind = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=(timeout_seconds or DEFAULT_SECONDS) + MARGIN_SECONDS)
    try:
        dist.init_process_group(kind, rank=world.rank, world_size=world.size, timeout=timeout)
    except (ValueError, RuntimeError) as failed:
        raise BackendError(
            f"the processes did not find each other, got {failed}",
            where=f"rank {world.rank} of {world.size}",
            help="start them with ftkit train, torchrun or accelerate launch, which set MASTER_ADDR and MASTER_PORT; "
            "on several nodes the address must be reachable from each",
        ) from failed


def disconnect() -> None:
    """Leave the group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def all_reduced(value: torch.Tensor, op: str) -> torch.Tensor:
    """`value` combined over all ranks (`sum`, `max` or `min`), a new tensor; itself without a group."""
    if not dist.is_initialized():
        return value
    value = value.clone()
    dist.all_reduce(value, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op])
    return value


def gathered(value: Any) -> list[Any]:
    """The `value` of every rank, in their order; anything that can be pickled. Small things only."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def refuse_disagreement(world: World, values: Mapping[str, str]) -> None:
    """Compare what each rank worked out for itself and all must have alike.

    Raises:
        BackendError: on every rank, naming the first value that differs.
    """
    everyone: list[Mapping[str, str]] = gathered(dict(values))
    for name in values:
        for rank, theirs in enumerate(everyone):
            if theirs[name] != everyone[0][name]:
                raise BackendError(
                    f"the ranks do not agree on {name}, got {everyone[0][name]} on rank 0 and {theirs[name]} on "
                    f"rank {rank}",
                    where=f"rank {world.rank}",
                    help="let all nodes read the same files: data, model and output_dir on a disk they share",
                )
