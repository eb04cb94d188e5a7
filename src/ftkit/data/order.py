"""The order of training: which documents rank r sees in optimizer step s. A pure function, no state to save.

Every epoch is a seeded permutation of all packs, cut into steps of micro_batch_size x accumulation x world_size packs.
The permutation knows nothing of the ranks, so 8 ranks, or 8 accumulated micro-batches on one, see the same packs in
the same step; a resumed run asks for step s and gets what the uninterrupted one got. The last step of an
epoch takes what is left: nothing is dropped, nothing is repeated, no step spans two epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain

import numpy as np

from ftkit.errors import DataError

WINDOW_STEPS = 64  # of group_by_length: long enough to find like lengths, short enough to mix


@dataclass(frozen=True, eq=False)
class StepPlan:
    """Maps an optimizer step and a rank to micro-batches of document indices.

    Args:
        packs: document indices by pack, from `pack` or `pack_singly`.
        micro_batch_size: packs a micro-batch.
        accumulation: micro-batches a rank and step.
        num_epochs: may be fractional; its last step is rounded up.
        max_steps: when given, counts alone: beyond `num_epochs` the run goes on into further epochs.
        shuffle: False keeps the packs' own order in every epoch.
        group_lengths: tokens of each pack (`group_by_length`): steps then hold packs of like length, and the steps
            come in random order.

    Raises:
        DataError: there are no packs, or a size is not positive.
    """

    packs: Sequence[Sequence[int]]
    micro_batch_size: int = 1
    accumulation: int = 1
    world_size: int = 1
    seed: int = 42
    num_epochs: float = 1
    max_steps: int | None = None
    shuffle: bool = True
    group_lengths: np.ndarray | None = None
    _orders: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False)  # the latest epoch's order

    def __post_init__(self) -> None:
        if not len(self.packs):
            raise DataError("there are no documents to train on", help="look at the dropped rows in the report")
        for name in ("micro_batch_size", "accumulation", "world_size"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_steps is None and self.num_epochs <= 0:
            raise DataError(f"num_epochs must be above 0, got {self.num_epochs}")

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one whole epoch, the last of them possibly short."""
        return -(-len(self.packs) // self._packs_per_step)

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the run, known before the first."""
        if self.max_steps is not None and self.max_steps > 0:
            return self.max_steps
        steps = Fraction(str(self.num_epochs)) * self.steps_per_epoch
        return -(-steps.numerator // steps.denominator)

    def epoch(self, step: int) -> float:
        """Epochs done when `step` steps are done."""
        return step / self.steps_per_epoch

    def micro_batches(self, step: int, rank: int = 0) -> list[list[int]]:
        """Document indices of each micro-batch of `rank` in step `step` (from 0).

        Every rank gets the same number of micro-batches; in a short last step some are empty.
        """
        chosen = self._packs_of(step)
        size = self.micro_batch_size
        chunks = [chosen[start : start + size] for start in range(0, len(chosen), size)]
        num_rounds = -(-len(chunks) // self.world_size)
        chunks += [[]] * (num_rounds * self.world_size - len(chunks))
        return [list(chain.from_iterable(self.packs[i] for i in chunk)) for chunk in chunks[rank :: self.world_size]]

    def documents(self, step: int) -> list[int]:
        """Document indices of the whole step, over all ranks, in the global order."""
        return list(chain.from_iterable(self.packs[i] for i in self._packs_of(step)))

    def packs_in(self, step: int) -> list[list[int]]:
        """The packs of the whole step, each as its documents."""
        return [list(self.packs[i]) for i in self._packs_of(step)]

    @property
    def _packs_per_step(self) -> int:
        return self.micro_batch_size * self.accumulation * self.world_size

    def _packs_of(self, step: int) -> list[int]:
        epoch, within = divmod(step, self.steps_per_epoch)
        start = within * self._packs_per_step
        chosen: list[int] = self._order(epoch)[start : start + self._packs_per_step].tolist()
        return chosen

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            self._orders.clear()
            generator = np.random.default_rng([self.seed, epoch])
            order = generator.permutation(len(self.packs)) if self.shuffle else np.arange(len(self.packs))
            self._orders[epoch] = order if self.group_lengths is None else self._grouped(order, generator)
        return self._orders[epoch]

    def _grouped(self, order: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Sort windows of many steps by length, then shuffle the steps; the short one stays last.

        Windows, not the whole: equal neighbours in one epoch are not always neighbours in the next.
        """
        lengths, window = np.asarray(self.group_lengths), WINDOW_STEPS * self._packs_per_step
        windows = (order[start : start + window] for start in range(0, len(order), window))
        by_length = np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in windows])
        num_whole = len(order) // self._packs_per_step
        whole = by_length[: num_whole * self._packs_per_step].reshape(num_whole, self._packs_per_step)
        steps = generator.permutation(num_whole) if self.shuffle else np.arange(num_whole)
        return np.concatenate([whole[steps].ravel(), by_length[whole.size :]])


def evaluation_batches(
    packs: Sequence[Sequence[int]], micro_batch_size: int, world_size: int, rank: int
) -> Iterator[list[int]]:
    """Micro-batches of `rank` over all packs once, in order; every rank gets equally many, possibly empty ones."""
    num_rounds = -(-len(packs) // (micro_batch_size * world_size))
    for round_ in range(num_rounds):
        start = (round_ * world_size + rank) * micro_batch_size
        yield list(chain.from_iterable(packs[i] for i in range(start, min(start + micro_batch_size, len(packs)))))
