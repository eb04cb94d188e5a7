"""Learning rate schedules: pure functions from the step (from 0) to a factor of the peak rate.

Nothing is stepped and nothing saved: a resumed run asks for its step. The values are those of the libraries that shared
recipes were written for (transformers' lambdas, torch's OneCycleLR); tests hold them against these.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftkit.catalog import SCHEDULES, load
from ftkit.errors import RecipeError

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection

Schedule = Callable[[int], float]

DEFAULT_WARMUP_SHARE, DEFAULT_WARMUP_MOST = 0.03, 100  # when a recipe says nothing; what its dialect has always done


@dataclass(frozen=True, slots=True)
class Span:
    """The run as a schedule sees it.

    Args:
        has_warmup: the recipe itself asked for a warm-up.
    """

    num_steps: int
    num_warmup: int
    has_warmup: bool

    def warm(self, step: int) -> float:
        """Factor during the warm-up: from 0 in the first step up to 1 in the first step after it."""
        return step / max(1, self.num_warmup)

    def progress(self, step: int, end: int | None = None) -> float:
        """Share of the way from the end of the warm-up to `end` (default: of the run), at most 1."""
        end = self.num_steps if end is None else end
        return min(1.0, (step - self.num_warmup) / max(1, end - self.num_warmup))


def build_schedule(section: OptimizationSection, num_steps: int) -> Schedule:
    """Return the schedule of `section` for a run of `num_steps` steps.

    Raises:
        RecipeError: the name is unknown, or `lr_scheduler_kwargs` are not what this schedule takes.
    """
    if section.lr_scheduler not in SCHEDULES:
        close = difflib.get_close_matches(section.lr_scheduler, SCHEDULES, n=3) or sorted(SCHEDULES)
        raise RecipeError(
            f"unknown lr_scheduler, got {section.lr_scheduler}", where="lr_scheduler", help=f"use {', '.join(close)}"
        )
    span = Span(num_steps, warmup_steps(section, num_steps), has_warmup(section))
    options = ratios(section) | dict(section.lr_scheduler_kwargs)
    try:
        schedule: Schedule = load(SCHEDULES[section.lr_scheduler])(span, **options)
    except TypeError as wrong:
        raise RecipeError(
            f"{section.lr_scheduler} does not take these options, got {options} ({wrong})",
            where="lr_scheduler_kwargs",
            help="take the unknown option out",
        ) from wrong
    return schedule


def has_warmup(section: OptimizationSection) -> bool:
    """Whether the recipe says how long to warm up."""
    return section.warmup_steps is not None or section.warmup_ratio is not None


def warmup_steps(section: OptimizationSection, num_steps: int) -> int:
    """Steps of warm-up: as given, a share rounded up, or 3 % of the run and at most 100 steps."""
    if section.warmup_steps is not None:
        return section.warmup_steps
    if section.warmup_ratio is not None:
        return math.ceil(section.warmup_ratio * num_steps)
    return min(int(DEFAULT_WARMUP_SHARE * num_steps), DEFAULT_WARMUP_MOST)


def ratios(section: OptimizationSection) -> dict[str, Any]:
    """The cosine's own keys, as options of schedules that know them."""
    given = {"min_lr_ratio": section.cosine_min_lr_ratio, "constant_lr_ratio": section.cosine_constant_lr_ratio}
    return {key: value for key, value in given.items() if value}


def constant(span: Span) -> Schedule:
    """The peak rate throughout, without warm-up."""
    return lambda step: 1.0


def constant_with_warmup(span: Span) -> Schedule:
    """The peak rate after the warm-up."""
    return lambda step: span.warm(step) if step < span.num_warmup else 1.0


def linear(span: Span) -> Schedule:
    """Down to 0 in a straight line."""
    return lambda step: span.warm(step) if step < span.num_warmup else max(0.0, 1.0 - span.progress(step))


def cosine(span: Span, min_lr_ratio: float = 0.0, constant_lr_ratio: float = 0.0, num_cycles: float = 0.5) -> Schedule:
    """Down to `min_lr_ratio` along a cosine (Loshchilov & Hutter 2017, without restarts).

    Args:
        constant_lr_ratio: share of the run after which the rate stays at its lowest; 0 for the whole run.
    """
    end = int(span.num_steps * constant_lr_ratio) if constant_lr_ratio else span.num_steps

    def factor(step: int) -> float:
        if step < span.num_warmup:
            return span.warm(step)
        wave = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * span.progress(step, end)))
        return max(0.0, min_lr_ratio + (1.0 - min_lr_ratio) * wave)

    return factor


def one_cycle(
    span: Span, pct_start: float | None = None, div_factor: float = 25.0, final_div_factor: float = 1e4
) -> Schedule:
    """Up and down along half cosines (Smith & Topin 2018), as torch's OneCycleLR.

    Args:
        pct_start: share of the run that rises; the recipe's warm-up if it has one, else torch's 0.3.
        div_factor: peak / first rate.
        final_div_factor: first rate / last rate.
    """
    if pct_start is None:
        pct_start = span.num_warmup / span.num_steps if span.has_warmup else 0.3
    top, end = pct_start * span.num_steps - 1, span.num_steps - 1
    first = 1 / div_factor

    def factor(step: int) -> float:
        if step <= top:
            return between(first, 1.0, step / top if top else 1.0)
        return between(1.0, first / final_div_factor, min(1.0, (step - top) / (end - top)))

    return factor


def rex(span: Span, min_lr_ratio: float = 0.0) -> Schedule:
    """Slow at first, fast at the end: (1 - p) / (1/2 + (1 - p) / 2) at progress p.

    Source: Chen et al. 2021, "REX: Revisiting Budgeted Training with an Improved Schedule".
    """

    def factor(step: int) -> float:
        if step < span.num_warmup:
            return span.warm(step)
        left = 1.0 - span.progress(step)
        return min_lr_ratio + (1.0 - min_lr_ratio) * left / (0.5 + 0.5 * left)

    return factor


def wsd(
    span: Span,
    num_decay_steps: int | None = None,
    decay_ratio: float = 0.1,
    min_lr_ratio: float = 0.0,
    decay_type: str = "cosine",
) -> Schedule:
    """Warm-up, a long stable stretch at the peak, a short decay (Hu et al. 2024, MiniCPM).

    Args:
        num_decay_steps: steps of decay; `decay_ratio` of the run when not given.
        decay_type: `cosine`, `linear` or `1-sqrt`.
    """
    curves: dict[str, Callable[[float], float]] = {
        "linear": lambda p: 1.0 - p,
        "cosine": lambda p: 0.5 * (1.0 + math.cos(math.pi * p)),
        "1-sqrt": lambda p: 1.0 - math.sqrt(p),
    }
    if decay_type not in curves:
        raise RecipeError(
            f"unknown decay_type, got {decay_type}", where="lr_scheduler_kwargs", help=f"use {', '.join(curves)}"
        )
    num_decay = math.ceil(decay_ratio * span.num_steps) if num_decay_steps is None else num_decay_steps
    start = span.num_steps - num_decay

    def factor(step: int) -> float:
        if step < span.num_warmup:
            return min_lr_ratio + (1.0 - min_lr_ratio) * span.warm(step)
        if step < start:
            return 1.0
        curve = curves[decay_type](min(1.0, (step - start) / max(1, num_decay)))
        return min_lr_ratio + (1.0 - min_lr_ratio) * max(0.0, curve)

    return factor


def between(start: float, end: float, share: float) -> float:
    """Half a cosine from `start` to `end`."""
    return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1.0)
