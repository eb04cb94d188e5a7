"""One process, one device: a CPU or one GPU. The reference that every other backend is tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ftkit.errors import BackendError
from ftkit.parallel.backend import GroupBuilder, OptimizerFactory, World
from ftkit.parallel.shards import load_plain, save_plain


class SingleBackend:
    """See `Backend` in parallel/backend.py."""

    def __init__(self, world: World) -> None:
        assert world.size == 1
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

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients of one micro-batch."""
        self.loss += loss.detach()
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> float:
        """Clip, refuse what is not finite, step, clear."""
        gradients = [p.grad for p in self.trainable.values() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        length, loss = torch.stack([norm.float(), self.loss]).tolist()  # the one wait for the device in a step
        if not math.isfinite(length) or not math.isfinite(loss):
            raise not_finite(loss, length, first_not_finite(self.trainable))
        if self.max_norm > 0:
            nn.utils.clip_grads_with_norm_(self.trainable.values(), self.max_norm, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.zero_()
        return float(length)

    def reduce(self, value: Tensor, op: Literal["sum", "max", "min"]) -> Tensor:
        """One rank's value is everybody's."""
        return value

    def save_shards(self, folder: Path) -> None:
        """Write trainable parameters and optimizer state."""
        save_plain(folder, self.trainable, self.optimizer)

    def load_shards(self, folder: Path) -> None:
        """Read them back, in place."""
        load_plain(folder, self.trainable, self.optimizer)

    def full_state(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors of the net by name, on the CPU."""
        tensors = self.net.state_dict(keep_vars=True)
        for name in names:
            yield name, tensors[name].detach().cpu()

    def close(self) -> None:
        """There is no group to leave."""


def not_finite(loss: float, norm: float, name: str | None) -> BackendError:
    """The error of a step whose loss or gradient norm is not a number, or infinite."""
    what, value = ("loss", loss) if not math.isfinite(loss) else ("gradient norm", norm)
    at = f" (first in {name})" if name else ""
    return BackendError(
        f"the {what} is not finite, got {value}{at}; no parameter has been changed",
        help="look at the rows of this step; else lower learning_rate or max_grad_norm, or train in fp32",
    )


def first_not_finite(parameters: dict[str, nn.Parameter]) -> str | None:
    """Name of the first parameter whose gradient holds NaN or infinity."""
    for name, parameter in parameters.items():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return name
    return None
