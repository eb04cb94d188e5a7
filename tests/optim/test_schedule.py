from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from transformers.optimization import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from ftkit.catalog import SCHEDULES
from ftkit.errors import RecipeError
from ftkit.optim.schedule import build_schedule, warmup_steps
from ftkit.recipe.section.optimization import OptimizationSection

STEPS, WARMUP = 40, 6


def factors(name: str, **keys: Any) -> list[float]:
    schedule = build_schedule(OptimizationSection(lr_scheduler=name, **{"warmup_steps": WARMUP, **keys}), STEPS)
    return [schedule(step) for step in range(STEPS)]


def stepped(make: Callable[[torch.optim.Optimizer], LRScheduler]) -> list[float]:
    """The rates of a library's stateful scheduler, for a peak of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("name", "keys", "reference"),
    [
        ("linear", {}, lambda o: get_linear_schedule_with_warmup(o, WARMUP, STEPS)),
        ("cosine", {}, lambda o: get_cosine_schedule_with_warmup(o, WARMUP, STEPS)),
        (
            "cosine",
            {"cosine_min_lr_ratio": 0.1},
            lambda o: get_cosine_with_min_lr_schedule_with_warmup(o, WARMUP, STEPS, min_lr_rate=0.1),
        ),
        ("constant_with_warmup", {}, lambda o: get_constant_schedule_with_warmup(o, WARMUP)),
        (
            "wsd",
            {"lr_scheduler_kwargs": {"num_decay_steps": 10, "decay_type": "linear", "min_lr_ratio": 0.2}},
            lambda o: get_wsd_schedule(o, WARMUP, 10, STEPS, decay_type="linear", min_lr_ratio=0.2),
        ),
        (
            "warmup_stable_decay",
            {"lr_scheduler_kwargs": {"num_decay_steps": 12}},
            lambda o: get_wsd_schedule(o, WARMUP, 12, STEPS),
        ),
        ("one_cycle", {}, lambda o: OneCycleLR(o, 1.0, total_steps=STEPS, pct_start=WARMUP / STEPS)),
        ("one_cycle", {"warmup_steps": None}, lambda o: OneCycleLR(o, 1.0, total_steps=STEPS)),
    ],
)
def test_equals_the_library_that_recipes_were_written_for(
    name: str, keys: dict[str, Any], reference: Callable[[torch.optim.Optimizer], LRScheduler]
) -> None:
    assert factors(name, **keys) == pytest.approx(stepped(reference), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 3, 100])
def test_every_schedule_stays_between_zero_and_the_peak(name: str, steps: int) -> None:
    schedule = build_schedule(OptimizationSection(lr_scheduler=name, warmup_ratio=0.1), steps)
    values = [schedule(step) for step in range(steps)]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert max(values) > 0.5 or steps < 4


def test_cosine_stays_at_its_lowest_after_the_constant_share() -> None:
    values = factors("cosine", cosine_min_lr_ratio=0.1, cosine_constant_lr_ratio=0.5)
    assert values[20:] == pytest.approx([0.1] * 20)
    assert values[19] > 0.1


def test_a_constant_share_of_zero_means_none() -> None:
    assert factors("cosine", cosine_constant_lr_ratio=0.0) == factors("cosine")


def test_rex_falls_as_in_its_paper() -> None:
    values = factors("rex", warmup_steps=0)
    assert values == pytest.approx([(1 - t / 40) / (0.5 + 0.5 * (1 - t / 40)) for t in range(40)])


@pytest.mark.parametrize(
    ("keys", "steps", "expected"),
    [
        ({"warmup_steps": 7}, 100, 7),
        ({"warmup_steps": 7, "warmup_ratio": 0.5}, 100, 7),
        ({"warmup_ratio": 0.05}, 101, 6),
        ({"warmup_steps": 0}, 100, 0),
        ({}, 1000, 30),
        ({}, 10**6, 100),
        ({}, 10, 0),
    ],
)
def test_length_of_the_warmup(keys: dict[str, Any], steps: int, expected: int) -> None:
    assert warmup_steps(OptimizationSection(**keys), steps) == expected


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(RecipeError) as caught:
        build_schedule(OptimizationSection(lr_scheduler="cosin"), 10)
    assert str(caught.value).startswith("lr_scheduler: unknown lr_scheduler, got cosin\nhelp: use cosine")
    with pytest.raises(RecipeError, match="linear does not take these options, got {'num_cycels': 2}"):
        build_schedule(OptimizationSection(lr_scheduler="linear", lr_scheduler_kwargs={"num_cycels": 2}), 10)
