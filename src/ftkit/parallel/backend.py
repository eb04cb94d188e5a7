"""What the trainer and the loader ask of a backend; they never learn which one they have.

Order of a run: `place_block` for each transformer block, `finish` once, then per optimizer step the forward pass and
`backward` of each micro-batch inside `micro_batch` (`last` on the final one), and `step`. `save_shards` / `load_shards`
hold the trainable parameters and the optimizer state; frozen weights are read from the base model again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from ftkit.parallel.loss_scale import LossScale
    from ftkit.recipe.section.backend import BackendSection
    from ftkit.recipe.section.training import TrainingSection

GroupBuilder = Callable[[nn.Module], list[dict[str, Any]]]  # placed net -> parameter groups of its trainable parameters


class OptimizerFactory(Protocol):
    """Makes the optimizer of a run from parameter groups.

    `elementwise` says that each number of a parameter is stepped by itself (AdamW, SGD, Lion), so that any part of a
    parameter can be stepped alone; Muon and Adafactor look at whole matrices. `shardable`: it can step DTensors.
    """

    @property
    def elementwise(self) -> bool:
        """See above."""

    @property
    def shardable(self) -> bool:
        """See above."""

    def __call__(self, groups: Sequence[Mapping[str, Any]], /) -> Optimizer:
        """Parameter groups -> optimizer."""


@dataclass(frozen=True, slots=True)
class World:
    """Who this process is: global rank, number of processes, its rank on this node, and its device."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and speaks."""
        return self.rank == 0


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """What a recipe says of its backend.

    Args:
        section: the keys `fsdp`, `deepspeed` and theirs.
        training: numbers that a DeepSpeed configuration repeats.
        recipe_file: relative paths may lie beside it.
    """

    section: BackendSection
    training: TrainingSection
    recipe_file: str


class Backend(Protocol):
    """See DESIGN in ARCHITECTURE.md; every implementation passes tests/parallel/test_contract.py."""

    world: World
    scale: LossScale  # off unless a run begins it

    def place_block(self, block: nn.Module, fill: Callable[[nn.Module], None]) -> None:
        """Let `fill` put real tensors in place of the block's meta ones, then shard or keep the block."""

    def finish(
        self,
        net: nn.Module,
        fill: Callable[[nn.Module], None],
        build_groups: GroupBuilder,
        build_optimizer: OptimizerFactory,
        max_norm: float,
    ) -> tuple[nn.Module, Optimizer]:
        """Fill and place what no block holds (embeddings, norm, head), and return the module to call and its optimizer.

        Args:
            net: the whole net, its blocks placed.
            fill: puts real tensors in place of the meta ones that are left.
            build_groups: net -> parameter groups of what is trained.
            build_optimizer: parameter groups -> optimizer.
            max_norm: global gradient norm to clip to; 0 means no clipping.
        """

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        """Surround forward and backward of one micro-batch; `last` as for `backward`."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Back-propagate one micro-batch; on the `last` of a step gradients are summed over ranks.

        `loss` is this rank's part of the step's: a sum over its target tokens, divided by those of all ranks.
        """

    def step(self) -> float:
        """Clip, refuse a non-finite norm, step the optimizer, clear gradients; return the norm before clipping.

        Where the loss is scaled, a step whose gradients overflow is left out, and their norm is returned.

        Raises:
            BackendError: the gradient norm is not finite; no parameter has been changed.
        """

    def reduce(self, value: Tensor, op: Literal["sum", "max", "min"]) -> Tensor:
        """Return `value` combined over all ranks."""

    def save_shards(self, folder: Path) -> None:
        """Write trainable parameters and optimizer state under `folder`; every rank calls it."""

    def load_shards(self, folder: Path) -> tuple[str, ...]:
        """Read what `save_shards` wrote, at this or another world size; return what is not exactly as it was."""

    def full_state(self, names: Iterable[str]) -> Iterable[tuple[str, Tensor]]:
        """Yield whole tensors by parameter name, one at a time, on the CPU of rank 0 (nothing on other ranks)."""

    def close(self) -> None:
        """Leave the process group."""
