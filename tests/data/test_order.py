from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftkit.data.order import WINDOW_STEPS, StepPlan, evaluation_batches
from ftkit.data.packing import pack, pack_singly
from ftkit.errors import DataError

sizes = st.integers(1, 5)


def documents_of(plan: StepPlan, step: int) -> list[int]:
    """All ranks' documents of a step, in the order micro-batch, rank."""
    by_rank = [plan.micro_batches(step, rank) for rank in range(plan.world_size)]
    assert len({len(batches) for batches in by_rank}) == 1, "ranks disagree about the number of micro-batches"
    return [i for batches in zip(*by_rank, strict=True) for batch in batches for i in batch]


@given(st.integers(1, 70), sizes, sizes, sizes, st.integers(0, 9))
def test_an_epoch_holds_every_document_once(num: int, size: int, accumulation: int, world: int, seed: int) -> None:
    plan = StepPlan(pack_singly(num), size, accumulation, world, seed)
    seen = [i for step in range(plan.steps_per_epoch) for i in documents_of(plan, step)]
    assert sorted(seen) == list(range(num))


@given(st.integers(1, 70), sizes, sizes, st.integers(0, 9), st.integers(0, 7))
def test_the_global_order_is_the_same_at_any_world_size(
    num: int, size: int, accumulation: int, seed: int, step: int
) -> None:
    packs = pack_singly(num)
    alone = StepPlan(packs, 1, size * accumulation * 2, 1, seed)
    spread = StepPlan(packs, size, accumulation, 2, seed)
    assert alone.steps_per_epoch == spread.steps_per_epoch
    assert documents_of(alone, step) == documents_of(spread, step) == alone.documents(step)


def test_no_rank_has_more_micro_batches_than_accumulation_allows() -> None:
    plan = StepPlan(pack_singly(7), micro_batch_size=2, accumulation=2, world_size=2)
    assert [len(plan.micro_batches(0, rank)) for rank in range(2)] == [2, 2]


def test_the_last_step_is_short_and_evens_out_with_an_empty_batch() -> None:
    plan = StepPlan(pack_singly(5), accumulation=2, world_size=2, shuffle=False)
    assert plan.steps_per_epoch == 2
    assert [plan.micro_batches(1, rank) for rank in range(2)] == [[[4]], [[]]]


def test_packs_stay_whole_in_a_micro_batch() -> None:
    plan = StepPlan(pack([3, 3, 2], 5), micro_batch_size=1)
    assert sorted(sorted(plan.micro_batches(step)[0]) for step in range(2)) == [[0, 2], [1]]


def test_epochs_differ_and_repeat_by_seed() -> None:
    plan, again = (StepPlan(pack_singly(50), 50, num_epochs=2, seed=3) for _ in range(2))
    assert plan.documents(0) != plan.documents(1)
    assert [plan.documents(1), plan.documents(0)] == [again.documents(1), again.documents(0)]
    assert plan.documents(0) != StepPlan(pack_singly(50), 50, seed=4).documents(0)


@pytest.mark.parametrize(
    ("epochs", "max_steps", "expected"),
    [(1, None, 4), (2.5, None, 10), (0.3, None, 2), (0.1, None, 1), (1.1, None, 5), (3, 2, 2), (1, 9, 9)],
)
def test_number_of_steps(epochs: float, max_steps: int | None, expected: int) -> None:
    plan = StepPlan(pack_singly(10), micro_batch_size=3, num_epochs=epochs, max_steps=max_steps)
    assert plan.num_steps == expected
    assert plan.micro_batches(expected - 1)


def test_epoch_counts_finished_steps() -> None:
    plan = StepPlan(pack_singly(10), micro_batch_size=5)
    assert [plan.epoch(step) for step in range(4)] == [0, 0.5, 1, 1.5]


def test_no_packs_are_refused() -> None:
    with pytest.raises(DataError, match="there are no documents to train on"):
        StepPlan(pack_singly(0))


@given(st.integers(1, 40), sizes, sizes)
def test_evaluation_sees_every_pack_once_in_equal_rounds(num: int, size: int, world: int) -> None:
    ranks = [list(evaluation_batches(pack_singly(num), size, world, rank)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    assert sorted(i for batches in ranks for batch in batches for i in batch) == list(range(num))


@given(st.integers(1, 300), sizes, st.integers(0, 9))
def test_grouping_by_length_keeps_every_document_and_puts_like_lengths_together(num: int, size: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 100, num)
    plan = StepPlan(pack_singly(num), size, seed=seed, group_lengths=lengths)
    plain = StepPlan(pack_singly(num), size, seed=seed)
    steps = [plan.documents(step) for step in range(plan.steps_per_epoch)]
    assert sorted(i for step in steps for i in step) == list(range(num))
    assert [len(step) for step in steps] == [len(plain.documents(step)) for step in range(plan.steps_per_epoch)]

    def padding(plan: StepPlan) -> int:
        rows = [lengths[plan.documents(step)] for step in range(plan.steps_per_epoch)]
        return sum(int((row.max() - row).sum()) for row in rows)

    if num % size == 0 and num <= WINDOW_STEPS * size:  # the whole epoch in one window of whole steps
        assert padding(plan) <= padding(plain)
