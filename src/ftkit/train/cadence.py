"""When something recurs: a pure function of the steps done, so that a resumed run keeps the rhythm."""

from __future__ import annotations

import math
from collections.abc import Callable

Cadence = Callable[[int], bool]  # steps done -> whether it is due now


def never(done: int) -> bool:
    """Not once."""
    return False


def always(done: int) -> bool:
    """After each step."""
    return True


def every(num_steps: int) -> Cadence:
    """Due after each `num_steps` steps."""
    return lambda done: done > 0 and done % num_steps == 0


def per_epoch(times: int, steps_per_epoch: int) -> Cadence:
    """Due `times` an epoch, evenly spread, the last of them at the epoch's end."""

    def due(done: int) -> bool:
        # the number of marks i * steps_per_epoch / times passed grows exactly at the steps that are due
        return done > 0 and done * times // steps_per_epoch > (done - 1) * times // steps_per_epoch

    return due


def cadence(
    steps: float | None, times_per_epoch: int | None, strategy: str | None, *, num_steps: int, steps_per_epoch: int
) -> Cadence:
    """Return the rhythm that a recipe's keys ask for: save_steps, saves_per_epoch, save_strategy, and eval_* alike.

    Args:
        steps: from 1, a number of steps; below 1, a share of the whole run; 0 never.
        times_per_epoch: 0 never. Used when `steps` is not given.
        strategy: `no` switches everything off; without any of the three, once an epoch.
        num_steps: of the whole run.
        steps_per_epoch: of one whole epoch.
    """
    if strategy == "no":
        return never
    if steps is not None:
        if steps <= 0:
            return never
        return every(int(steps) if steps >= 1 else math.ceil(steps * num_steps))
    times = 1 if times_per_epoch is None else times_per_epoch
    return per_epoch(times, steps_per_epoch) if times > 0 else never
