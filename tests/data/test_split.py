from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftkit.data.split import hold_out
from ftkit.data.store import ExampleStore, StoreWriter
from ftkit.data.values import Where
from ftkit.errors import DataError


def store(num: int) -> ExampleStore:
    writer = StoreWriter()
    for number in range(num):
        writer.add(np.array([number], np.int32), np.ones(1, np.bool_), Where("rows.jsonl", number))
    return writer.in_memory()


def ids(part: ExampleStore | None) -> list[int]:
    return [int(example.input_ids[0]) for example in part or ()]


@given(st.integers(2, 60), st.floats(0.01, 0.6), st.integers(0, 99))
def test_parts_are_disjoint_whole_and_the_same_again(num: int, share: float, seed: int) -> None:
    try:
        train, held = hold_out(store(num), share, seed)
    except DataError:
        assert np.ceil(share * num) >= num
        return
    assert sorted(ids(train) + ids(held)) == list(range(num))
    again = hold_out(store(num), share, seed)
    assert (ids(train), ids(held)) == (ids(again[0]), ids(again[1]))


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (0.0, 0), (3, 3), (0.02, 1), (0.25, 3)])
def test_size_is_rows_or_a_share_rounded_up(size: float, expected: int) -> None:
    assert len(ids(hold_out(store(10), size, 1)[1])) == expected


def test_a_split_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        hold_out(store(3), 3, 1)
    assert str(caught.value) == (
        "val_set_size: val_set_size leaves nothing to train on, got 3 of 3 documents\n"
        "help: make val_set_size smaller, or add rows"
    )
