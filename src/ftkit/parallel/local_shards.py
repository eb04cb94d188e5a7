"""The parts of sharded parameters that lie on this rank, as ordinary parameters for an ordinary optimizer.

An optimizer that steps each number by itself does the same on a part as on the whole. bitsandbytes refuses DTensors,
and torch's own optimizers pay for them with every operation; over the local parts both run as on one device. A part
shares its memory with the DTensor, so nothing is copied; its gradient is the DTensor's local one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, eq=False)
class LocalShards:
    """`whole` are the sharded parameters by name, `parts` what this rank holds of each (possibly nothing)."""

    whole: Mapping[str, nn.Parameter]
    parts: Mapping[str, nn.Parameter]

    def groups(self, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The same parameter groups over the local parts; a part without numbers is left out."""
        part_of = {id(parameter): self.parts[name] for name, parameter in self.whole.items()}
        return [
            {**group, "params": [p for p in (part_of[id(p)] for p in group["params"]) if p.numel()]} for group in groups
        ]

    def take_gradients(self) -> None:
        """Give each part its gradient."""
        for name, parameter in self.whole.items():
            self.parts[name].grad = None if parameter.grad is None else local(parameter.grad)

    def clear_gradients(self) -> None:
        """Drop the gradients of both."""
        for name, parameter in self.whole.items():
            parameter.grad = self.parts[name].grad = None


def local_shards(whole: Mapping[str, nn.Parameter]) -> LocalShards:
    """Return the parts of `whole` (DTensors, or plain where there is one process)."""
    return LocalShards(whole, {name: nn.Parameter(local(p.detach())) for name, p in whole.items()})


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor; a view."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_number(tensor: Tensor) -> tuple[int, int]:
    """Which part of a sharded tensor lies here, and of how many; (0, 1) for a whole one."""
    if not isinstance(tensor, DTensor):
        return 0, 1
    mesh = tensor.device_mesh  # the last axis shards; one before it holds copies
    return mesh.get_local_rank(mesh.ndim - 1), mesh.size(mesh.ndim - 1)


def unsharded(parameters: Mapping[str, nn.Parameter]) -> LocalShards:
    """Whole parameters in the same form."""
    return LocalShards(parameters, parameters)
