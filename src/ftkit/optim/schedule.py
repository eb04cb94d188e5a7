"""From a recipe's learning rate keys to a pure function: optimizer step (from 0) -> factor of the peak rate.

Nothing is stepped and nothing saved: a resumed run asks for its step.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftkit.catalog import SCHEDULES, load
from ftkit.errors import RecipeError
from ftkit.optim.shapes import Schedule, Span

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection

DEFAULT_WARMUP_SHARE, DEFAULT_WARMUP_MOST = 0.03, 100  # when a recipe says nothing; what its dialect has always done


def build_schedule(section: OptimizationSection, num_steps: int) -> Schedule:
    """Return the schedule of `section` for a run of `num_steps` steps.

    Raises:
        RecipeError: the name is unknown, an option is not what this schedule takes, or a share is not within 0 and 1.
    """
    if section.lr_scheduler not in SCHEDULES:
        close = difflib.get_close_matches(section.lr_scheduler, SCHEDULES, n=3) or sorted(SCHEDULES)
        raise RecipeError(
            f"unknown lr_scheduler, got {section.lr_scheduler}", where="lr_scheduler", help=f"use {' or '.join(close)}"
        )
    shape: Callable[..., Schedule] = load(SCHEDULES[section.lr_scheduler])
    refuse_bad_shares(section)
    options = options_of(section, shape)
    schedule = shape(span_of(section, num_steps), **options)
    try:
        schedule(num_steps - 1)
    except (TypeError, ValueError, ZeroDivisionError) as wrong:
        raise RecipeError(
            f"{section.lr_scheduler} cannot compute with these options, got {options} ({wrong})",
            where="lr_scheduler_kwargs",
            help="give numbers in the range the option means",
        ) from wrong
    return schedule


def span_of(section: OptimizationSection, num_steps: int) -> Span:
    """The run as the schedule of `section` sees it."""
    asked = section.warmup_steps is not None or section.warmup_ratio is not None
    return Span(num_steps, warmup_steps(section, num_steps), asked, section.learning_rate)


def warmup_steps(section: OptimizationSection, num_steps: int) -> int:
    """Steps of warm-up: as given, a share rounded up, or 3 % of the run and at most 100 steps."""
    if section.warmup_steps is not None:
        return section.warmup_steps
    if section.warmup_ratio is not None:
        return math.ceil(section.warmup_ratio * num_steps)
    return min(int(DEFAULT_WARMUP_SHARE * num_steps), DEFAULT_WARMUP_MOST)


def options_of(section: OptimizationSection, shape: Callable[..., Schedule]) -> dict[str, Any]:
    """The options of `shape`: `lr_scheduler_kwargs`, and the cosine's own keys, which rex and wsd understand too."""
    _, *allowed = inspect.signature(shape).parameters  # the first is the span
    if unknown := [name for name in section.lr_scheduler_kwargs if name not in allowed]:
        raise RecipeError(
            f"{section.lr_scheduler} does not take these options, got {', '.join(unknown)}",
            where="lr_scheduler_kwargs",
            help=f"take them out; it knows {', '.join(allowed)}" if allowed else "take them out; it has no options",
        )
    options = dict(section.lr_scheduler_kwargs)
    for key in ("cosine_min_lr_ratio", "cosine_constant_lr_ratio"):
        value, name = getattr(section, key), key.removeprefix("cosine_")
        if value and name not in allowed:
            raise RecipeError(
                f"{section.lr_scheduler} has no such share, got {value}",
                where=key,
                help="take the key out, or use lr_scheduler: cosine",
            )
        if value:
            options[name] = value
    return options


def refuse_bad_shares(section: OptimizationSection) -> None:
    """Raise one error naming every share that is not within 0 and 1."""
    shares = {
        name: getattr(section, name) for name in ("warmup_ratio", "cosine_min_lr_ratio", "cosine_constant_lr_ratio")
    }
    if wrong := {name: share for name, share in shares.items() if share is not None and not 0.0 <= share <= 1.0}:
        raise RecipeError(
            f"not within 0 and 1, got {', '.join(f'{name}: {share}' for name, share in wrong.items())}",
            where=next(iter(wrong)),
            help="give a share of the run or of the peak rate; for a number of steps there is warmup_steps",
        )
