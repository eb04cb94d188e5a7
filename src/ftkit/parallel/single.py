"""One process, one device: a CPU or one GPU. The reference that every other backend is tested against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ftkit.parallel.backend import BackendRequest, GroupBuilder, OptimizerFactory, World
from ftkit.parallel.gradients import clip, refuse_not_finite, total_norm
from ftkit.parallel.local_shards import unsharded
from ftkit.parallel.loss_scale import LossScale
from ftkit.parallel.sharded_files import load_sharded
from ftkit.parallel.shards import save_plain


def build(world: World, request: BackendRequest) -> SingleBackend:
    """Make it; there is nothing to choose."""
    return SingleBackend(world)


class SingleBackend:
    """See `Backend` in parallel/backend.py."""

    def __init__(self, world: World) -> None:
        assert world.size == 1
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
        """Fill the rest and build the optimizer over the net's trainable parameters."""
        fill(net)
        self.net, self.max_norm = net, max_norm
        self.trainable = {name: p for name, p in net.named_parameters() if p.requires_grad}
        self.optimizer = build_optimizer(build_groups(net))
        self.loss = torch.zeros((), device=self.world.device)  # of this step so far
        return net, self.optimizer

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        """Nothing is to be told to anyone."""
        return nullcontext()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients of one micro-batch."""
        self.loss += loss.detach()
        self.scale.up(loss).backward()  # type: ignore[no-untyped-call]

    def step(self) -> float:
        """Clip, refuse what is not finite, step, clear."""
        gradients = {name: p.grad for name, p in self.trainable.items()}
        norm = total_norm((g for g in gradients.values() if g is not None), self.world.device)
        length, loss = torch.stack([norm, self.loss]).tolist()  # the one wait for the device in a step
        length = self.scale.down(gradients.values(), length)
        if self.scale.skips(length, loss):
            return self.clear(length)
        refuse_not_finite(length, loss, gradients)
        clip(self.trainable.values(), self.max_norm, length)
        self.optimizer.step()
        return self.clear(length)

    def clear(self, norm: float) -> float:
        """Begin the next step without gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.zero_()
        return norm

    def reduce(self, value: Tensor, op: Literal["sum", "max", "min"]) -> Tensor:
        """One rank's value is everybody's."""
        return value

    def save_shards(self, folder: Path) -> None:
        """Write trainable parameters and optimizer state."""
        save_plain(folder, self.trainable, self.optimizer)
        self.scale.save(folder)

    def load_shards(self, folder: Path) -> tuple[str, ...]:
        """Read them back, in place."""
        self.scale.load(folder)
        return load_sharded(folder, unsharded(self.trainable), self.optimizer)

    def full_state(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors of the net by name, on the CPU."""
        tensors = self.net.state_dict(keep_vars=True)
        for name in names:
            yield name, tensors[name].detach().cpu()

    def close(self) -> None:
        """There is no group to leave."""
