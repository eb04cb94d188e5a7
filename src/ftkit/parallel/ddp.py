"""A whole copy on every rank, gradients summed by torch's DistributedDataParallel.

All ranks read the same weights and draw the same adapters (by name and seed), so nothing is sent at the start.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ftkit.parallel.backend import BackendRequest, GroupBuilder, OptimizerFactory, World
from ftkit.parallel.gradients import agreed, clip, refuse_not_finite, total_norm
from ftkit.parallel.local_shards import unsharded
from ftkit.parallel.loss_scale import LossScale
from ftkit.parallel.process_group import all_reduced, disconnect
from ftkit.parallel.sharded_files import load_sharded
from ftkit.parallel.shards import save_plain


def build(world: World, request: BackendRequest) -> DdpBackend:
    """Make it; there is nothing to choose."""
    return DdpBackend(world)


class DdpBackend:
    """See `Backend` in parallel/backend.py."""

    def __init__(self, world: World) -> None:
        self.scale = LossScale()
        self.world = world

    def place_block(self, block: nn.Module, fill: Callable[[nn.Module], None]) -> None:
        """The filled block is where it belongs."""
        fill(block)

    def finish(
        self,
        net: nn.Module,
        fill: Callable[[nn.Module], None],
        build_groups: GroupBuilder,
        build_optimizer: OptimizerFactory,
        max_norm: float,
    ) -> tuple[nn.Module, Optimizer]:
        """Fill the rest, build the optimizer over the net's trainable parameters, wrap the net."""
        fill(net)
        self.net, self.max_norm = net, max_norm
        self.trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
        self.optimizer = build_optimizer(build_groups(net))
        self.loss = torch.zeros((), device=self.world.device)  # this rank's share of this step's
        self.module = DistributedDataParallel(net, init_sync=False, gradient_as_bucket_view=True, **no_buffers())
        return self.module, self.optimizer

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        """Gradients travel with the last micro-batch alone; DDP wants to know before the forward pass."""
        return nullcontext() if last else self.module.no_sync()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients of one micro-batch; DDP divides by the number of ranks, so the loss is multiplied by it."""
        self.loss += loss.detach()
        self.scale.up(loss * self.world.size).backward()  # type: ignore[no-untyped-call]

    def step(self) -> float:
        """Clip, refuse what is not finite, step, clear: every rank has the same gradients and does the same."""
        gradients = {name: p.grad for name, p in self.trainable.items()}
        local = total_norm((g for g in gradients.values() if g is not None), self.world.device)
        norm, loss = agreed(local, self.loss, parts=self.world.size)
        norm = self.scale.down(gradients.values(), norm)
        if self.scale.skips(norm, loss):
            return self.clear(norm)
        refuse_not_finite(norm, loss, gradients)
        clip(self.trainable.values(), self.max_norm, norm)
        self.optimizer.step()
        return self.clear(norm)

    def clear(self, norm: float) -> float:
        """Begin the next step without gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.zero_()
        return norm

    def reduce(self, value: Tensor, op: Literal["sum", "max", "min"]) -> Tensor:
        """Combine over ranks."""
        return all_reduced(value, op)

    def save_shards(self, folder: Path) -> None:
        """Rank 0 writes what every rank holds."""
        if self.world.is_main:
            save_plain(folder, self.trainable, self.optimizer)
            self.scale.save(folder)

    def load_shards(self, folder: Path) -> tuple[str, ...]:
        """Every rank reads it."""
        self.scale.load(folder)
        return load_sharded(folder, unsharded(self.trainable), self.optimizer)

    def full_state(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors of the net by name, on the CPU of rank 0."""
        if self.world.is_main:
            tensors = self.net.state_dict(keep_vars=True)
            for name in names:
                yield name, tensors[name].detach().cpu()

    def close(self) -> None:
        """Leave the group."""
        disconnect()


def no_buffers() -> dict[str, Any]:
    """Keep buffers (rotary tables, equal on all ranks) from being sent before every forward; torch renamed that."""
    known = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}
