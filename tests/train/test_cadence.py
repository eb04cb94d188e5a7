from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftkit.train.cadence import always, cadence, every, never, per_epoch


def due(rhythm: object, last: int) -> list[int]:
    return [done for done in range(last + 1) if rhythm(done)]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((3, None, None), [3, 6, 9, 12, 15, 18]),
        ((0.25, None, None), [5, 10, 15, 20]),
        ((0.3, None, "steps"), [6, 12, 18]),
        ((0, None, None), []),
        ((None, 2, None), [4, 7, 11, 14, 18]),
        ((None, 1, None), [7, 14]),
        ((None, 0, None), []),
        ((None, None, None), [7, 14]),
        ((None, None, "epoch"), [7, 14]),
        ((3, 2, "no"), []),
    ],
)
def test_recipe_keys_as_steps(keys: tuple[float | None, int | None, str | None], expected: list[int]) -> None:
    assert due(cadence(*keys, num_steps=20, steps_per_epoch=7), 20) == expected


@given(times=st.integers(1, 12), steps_per_epoch=st.integers(1, 50), epochs=st.integers(1, 4))
def test_per_epoch_is_due_so_many_times_and_at_every_epochs_end(times: int, steps_per_epoch: int, epochs: int) -> None:
    steps = due(per_epoch(times, steps_per_epoch), steps_per_epoch * epochs)
    assert len(steps) == min(times, steps_per_epoch) * epochs
    assert set(range(steps_per_epoch, steps_per_epoch * epochs + 1, steps_per_epoch)) <= set(steps)


def test_nothing_is_due_before_the_first_step() -> None:
    assert [rhythm(0) for rhythm in (never, every(1), per_epoch(4, 3))] == [False] * 3
    assert always(1)
