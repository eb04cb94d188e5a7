from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from transformers.optimization import (
    get_constant_schedule,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
    get_wsd_schedule,
)

from ftkit.catalog import SCHEDULES
from ftkit.errors import RecipeError
from ftkit.optim.schedule import build_schedule, warmup_steps
from ftkit.recipe.section.optimization import OptimizationSection

STEPS, WARMUP = 40, 6


def factors(name: str, **keys: Any) -> list[float]:
    section = OptimizationSection(lr_scheduler=name, **{"learning_rate": 1.0, "warmup_steps": WARMUP, **keys})
    schedule = build_schedule(section, STEPS)
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
        (
            "cosine_with_min_lr",
            {"lr_scheduler_kwargs": {"min_lr": 0.2, "num_cycles": 1.5}},
            lambda o: get_cosine_with_min_lr_schedule_with_warmup(o, WARMUP, STEPS, min_lr=0.2, num_cycles=1.5),
        ),
        (
            "cosine_with_restarts",
            {"lr_scheduler_kwargs": {"num_cycles": 3}},
            lambda o: get_cosine_with_hard_restarts_schedule_with_warmup(o, WARMUP, STEPS, num_cycles=3),
        ),
        (
            "polynomial",
            {"lr_scheduler_kwargs": {"power": 2.0, "lr_end": 0.01}},
            lambda o: get_polynomial_decay_schedule_with_warmup(o, WARMUP, STEPS, power=2.0, lr_end=0.01),
        ),
        ("polynomial", {}, lambda o: get_polynomial_decay_schedule_with_warmup(o, WARMUP, STEPS)),
        ("inverse_sqrt", {}, lambda o: get_inverse_sqrt_schedule(o, WARMUP)),
        (
            "inverse_sqrt",
            {"lr_scheduler_kwargs": {"timescale": 20}},
            lambda o: get_inverse_sqrt_schedule(o, WARMUP, timescale=20),
        ),
        ("constant", {}, get_constant_schedule),
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
        (
            "wsd",
            {"lr_scheduler_kwargs": {"num_decay_steps": 9, "num_stable_steps": 20, "warmup_type": "1-sqrt"}},
            lambda o: get_wsd_schedule(o, WARMUP, 9, num_stable_steps=20, warmup_type="1-sqrt"),
        ),
        (
            "wsd",
            {"lr_scheduler_kwargs": {"num_decay_steps": 9, "warmup_type": "cosine", "decay_type": "1-sqrt"}},
            lambda o: get_wsd_schedule(o, WARMUP, 9, STEPS, warmup_type="cosine", decay_type="1-sqrt"),
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
    options = {"min_lr_rate": 0.1} if name == "cosine_with_min_lr" else {}
    section = OptimizationSection(lr_scheduler=name, warmup_ratio=0.1, lr_scheduler_kwargs=options)
    schedule = build_schedule(section, steps)
    values = [schedule(step) for step in range(steps)]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert max(values) > 0.5 or steps < 4


def test_cosine_stays_at_its_lowest_after_the_constant_share() -> None:
    values = factors("cosine", cosine_min_lr_ratio=0.1, cosine_constant_lr_ratio=0.5)
    assert values[20:] == pytest.approx([0.1] * 20)
    assert values[19] > 0.1


def test_a_constant_share_of_zero_means_none() -> None:
    assert factors("cosine", cosine_constant_lr_ratio=0.0) == factors("cosine")


def test_rex_falls_as_in_its_paper_when_bent_by_a_half() -> None:
    values = factors("rex", warmup_steps=0, lr_scheduler_kwargs={"bend": 0.5})
    assert values == pytest.approx([(1 - t / 40) / (0.5 + 0.5 * (1 - t / 40)) for t in range(40)])


def test_rex_is_bent_by_nine_tenths_as_recipes_know_it() -> None:
    values = factors("rex", cosine_min_lr_ratio=0.2)
    left = [(STEPS - step) / (STEPS - WARMUP) for step in range(WARMUP, STEPS)]
    assert values[:WARMUP] == pytest.approx([step / WARMUP for step in range(WARMUP)])
    assert values[WARMUP:] == pytest.approx([0.2 + 0.8 * z / (0.1 + 0.9 * z) for z in left])


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


def error(**keys: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        build_schedule(OptimizationSection(**keys), 10)
    return str(caught.value)


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    assert error(lr_scheduler="cosin").startswith("lr_scheduler: unknown lr_scheduler, got cosin\nhelp: use cosine")


def test_an_unknown_option_is_named() -> None:
    assert error(lr_scheduler="polynomial", lr_scheduler_kwargs={"powr": 2, "lr_end": 0.0}) == (
        "lr_scheduler_kwargs: polynomial does not take these options, got powr\n"
        "help: take them out; it knows lr_end, power"
    )
    assert error(lr_scheduler="linear", lr_scheduler_kwargs={"power": 2}).endswith("it has no options")


def test_a_cosines_key_under_another_schedule_is_refused_by_its_own_name() -> None:
    assert error(lr_scheduler="linear", cosine_min_lr_ratio=0.1) == (
        "cosine_min_lr_ratio: linear has no such share, got 0.1\nhelp: take the key out, or use lr_scheduler: cosine"
    )


def test_shares_lie_within_0_and_1() -> None:
    assert error(warmup_ratio=10, cosine_min_lr_ratio=-1).startswith(
        "warmup_ratio: not within 0 and 1, got warmup_ratio: 10.0, cosine_min_lr_ratio: -1.0\nhelp: "
    )


def test_a_text_for_a_number_is_the_recipes_fault() -> None:
    options = {"lr_scheduler": "polynomial", "lr_scheduler_kwargs": {"power": "two"}}
    assert error(**options).startswith("lr_scheduler_kwargs: polynomial cannot compute with these options")


def test_unknown_curves_are_refused() -> None:
    assert error(lr_scheduler="wsd", lr_scheduler_kwargs={"decay_type": "sqrt"}) == (
        "lr_scheduler_kwargs: unknown decay_type, got sqrt\nhelp: use linear, cosine, 1-sqrt"
    )


def test_the_lowest_rate_of_a_cosine_is_given_once() -> None:
    assert "wants one of min_lr and min_lr_rate" in error(lr_scheduler="cosine_with_min_lr")
