from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftkit.data.packing import Packs, pack, pack_singly
from ftkit.errors import DataError

lengths_and_capacity = st.integers(1, 60).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(1, capacity), max_size=80), st.just(capacity))
)


def best_fit_decreasing(lengths: list[int], capacity: int) -> list[int]:
    """The textbook, one document at a time: tokens in each pack."""
    used: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [i for i, tokens in enumerate(used) if tokens + length <= capacity]
        if fitting:
            used[max(fitting, key=lambda i: used[i])] += length
        else:
            used.append(length)
    return sorted(used)


def next_fit(lengths: list[int], capacity: int) -> int:
    packs, used = 0, capacity
    for length in lengths:
        if used + length > capacity:
            packs, used = packs + 1, 0
        used += length
    return packs


def first_fit_decreasing(lengths: list[int], capacity: int) -> int:
    used: list[int] = []
    for length in sorted(lengths, reverse=True):
        place = next((i for i, tokens in enumerate(used) if tokens + length <= capacity), None)
        if place is None:
            used.append(length)
        else:
            used[place] += length
    return len(used)


def tokens_of(packs: Packs, lengths: list[int]) -> list[int]:
    return sorted(sum(lengths[i] for i in members) for members in packs)


@given(lengths_and_capacity)
def test_every_document_is_packed_once_and_no_pack_overflows(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    packs = pack(lengths, capacity)
    assert sorted(i for members in packs for i in members) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in members) <= capacity for members in packs)
    assert [packs[i] for i in range(len(packs))] == list(packs)


@given(lengths_and_capacity)
def test_packs_are_those_of_best_fit_decreasing(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    assert tokens_of(pack(lengths, capacity), lengths) == best_fit_decreasing(lengths, capacity)


@pytest.mark.parametrize(("mean", "spread"), [(5.0, 1.2), (6.0, 1.0), (6.5, 0.7), (7.0, 1.0), (7.5, 0.5)])
def test_lognormal_lengths_take_no_more_packs_than_next_fit_or_sorted_first_fit(mean: float, spread: float) -> None:
    lengths = np.random.default_rng(1).lognormal(mean, spread, 3000).clip(1, 4096).astype(int).tolist()
    num_packs = len(pack(lengths, 4096))
    assert num_packs <= min(next_fit(lengths, 4096), first_fit_decreasing(lengths, 4096))


@pytest.mark.parametrize("mean", [5.0, 6.0, 7.0])
def test_a_million_lognormal_lengths_come_within_two_permille_of_the_lower_bound(mean: float) -> None:
    lengths = np.random.default_rng(0).lognormal(mean, 1.0, 1_000_000).clip(1, 4096).astype(np.int64)
    packs = pack(lengths, 4096)
    assert np.array_equal(np.sort(packs.flat), np.arange(len(lengths)))
    assert np.add.reduceat(lengths[packs.flat], packs.borders[:-1]).max() <= 4096
    assert len(packs) <= 1.002 * -(-int(lengths.sum()) // 4096)


def test_nothing_gives_no_pack() -> None:
    assert list(pack([], 8)) == []


def test_a_document_longer_than_a_pack_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        pack([3, 9], 8)
    assert str(caught.value) == (
        "document 1 is longer than a pack of 8 tokens, got 9\n"
        "help: raise sequence_len, or set excess_length_strategy to drop or truncate"
    )


def test_an_empty_document_is_refused() -> None:
    with pytest.raises(DataError, match="document 0 has no tokens, got length 0"):
        pack([0, 3], 8)


def test_single_packs_keep_the_order() -> None:
    assert list(pack_singly(3)) == [[0], [1], [2]]
