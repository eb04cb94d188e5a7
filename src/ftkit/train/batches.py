"""The micro-batches of a step, made ready while the step before is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ftkit.data.batch import collate
from ftkit.data.order import StepPlan, evaluation_batches
from ftkit.data.store import ExampleStore
from ftkit.data.values import IGNORED, Batch
from ftkit.parallel.backend import World


@dataclass(frozen=True, slots=True)
class StepBatches:
    """What one rank computes in one optimizer step.

    Args:
        num_target_tokens: of the whole step, over all ranks: what the loss is divided by.
    """

    micro_batches: Sequence[Batch]
    num_target_tokens: int


class BatchSource(Protocol):
    """Where the loop gets its data."""

    num_steps: int
    steps_per_epoch: int

    def step(self, step: int) -> StepBatches:
        """The micro-batches of step `step`, from 0."""

    def close(self) -> None:
        """Stop working ahead."""


class PlannedBatches:
    """Batches of an `ExampleStore` in the order of a `StepPlan`, one step ahead of the loop.

    Every rank counts the target tokens of the whole step itself, from the store: no communication, no wait for a
    device, and the count is known before the first backward pass, as ZeRO needs it.

    Args:
        pad_to: tokens of a row (`pad_to_sequence_len`), None for rows as long as their documents.
    """

    def __init__(self, store: ExampleStore, plan: StepPlan, world: World, *, pad_to: int | None, pad_id: int) -> None:
        self.store, self.plan, self.world, self.pad_to, self.pad_id = store, plan, world, pad_to, pad_id
        self.num_steps, self.steps_per_epoch = plan.num_steps, plan.steps_per_epoch
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ahead: tuple[int, Future[StepBatches]] | None = None

    def step(self, step: int) -> StepBatches:
        """The micro-batches of step `step`; the next step's are begun."""
        ready = self._ahead[1] if self._ahead and self._ahead[0] == step else self._worker.submit(self.make, step)
        batches = ready.result()
        if step + 1 < self.num_steps:
            self._ahead = step + 1, self._worker.submit(self.make, step + 1)
        return batches

    def make(self, step: int) -> StepBatches:
        """Read and lay out one step."""
        documents = self.plan.micro_batches(step, self.world.rank)
        batches = [collate(self.store, chosen, pad_to=self.pad_to, pad_id=self.pad_id) for chosen in documents]
        if self.world.size == 1:
            return StepBatches(batches, sum(batch.num_target_tokens for batch in batches))
        return StepBatches(batches, sum(num_targets(self.store, index) for index in self.plan.documents(step)))

    def close(self) -> None:
        """Drop what was begun."""
        self._worker.shutdown(wait=True, cancel_futures=True)


def num_targets(store: ExampleStore, index: int) -> int:
    """Target tokens of one document; its first token is never one."""
    return int(np.count_nonzero(store[index].labels[1:] != IGNORED))


def evaluation_source(
    store: ExampleStore, packs: Sequence[Sequence[int]], micro_batch_size: int, world: World, *, pad_id: int
) -> Callable[[], Iterator[Batch]]:
    """Return a function that gives this rank's batches over all `packs` once; every rank gets equally many."""

    def batches() -> Iterator[Batch]:
        for chosen in evaluation_batches(packs, micro_batch_size, world.size, world.rank):
            yield collate(store, chosen, pad_to=None, pad_id=pad_id)

    return batches
