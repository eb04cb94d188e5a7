"""The shapes of learning rate schedules: `Span` and options in, a pure function from the step to a factor out.

Each rises in a straight line from 0 over the warm-up, unless it says otherwise. Option names are those of the libraries
that shared recipes were written for, and so are the values; tests hold them against these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftkit.errors import RecipeError

Schedule = Callable[[int], float]  # optimizer step, from 0 -> factor of the peak rate

# Share of a stretch that has passed -> factor. What falls mirrors what rises.
FALLS: Mapping[str, Callable[[float], float]] = {
    "linear": lambda p: 1.0 - p,
    "cosine": lambda p: 0.5 * (1.0 + math.cos(math.pi * p)),
    "1-sqrt": lambda p: 1.0 - math.sqrt(p),
}
RISES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda p: p,
    "cosine": lambda p: 0.5 * (1.0 - math.cos(math.pi * p)),
    "1-sqrt": lambda p: 1.0 - math.sqrt(1.0 - p),
}


@dataclass(frozen=True, slots=True)
class Span:
    """The run as a schedule sees it.

    Args:
        num_warmup: steps of warm-up.
        has_warmup: the recipe itself asked for a warm-up.
        peak: the learning rate that factors multiply.
    """

    num_steps: int
    num_warmup: int
    has_warmup: bool
    peak: float

    def warmed(self, after: Schedule) -> Schedule:
        """`after`, preceded by a straight line from 0 in the first step to 1 in the first step after the warm-up."""
        return lambda step: step / self.num_warmup if step < self.num_warmup else after(step)

    def progress(self, step: int, end: int | None = None) -> float:
        """Share of the way from the end of the warm-up to `end` (default: of the run), at most 1."""
        end = self.num_steps if end is None else end
        return min(1.0, (step - self.num_warmup) / max(1, end - self.num_warmup))


def constant(span: Span) -> Schedule:
    """The peak rate throughout, without warm-up."""
    return lambda step: 1.0


def constant_with_warmup(span: Span) -> Schedule:
    """The peak rate after the warm-up."""
    return span.warmed(lambda step: 1.0)


def linear(span: Span) -> Schedule:
    """Down to 0 in a straight line."""
    return span.warmed(lambda step: 1.0 - span.progress(step))


def cosine(span: Span, min_lr_ratio: float = 0.0, constant_lr_ratio: float = 0.0, num_cycles: float = 0.5) -> Schedule:
    """Down to `min_lr_ratio` of the peak along a cosine (Loshchilov & Hutter 2017, without restarts).

    Args:
        span: the run.
        min_lr_ratio: lowest rate as a share of the peak.
        constant_lr_ratio: share of the run after which the rate stays at its lowest; 0 for the whole run.
        num_cycles: waves of the cosine; a half goes down once.
    """
    end = int(span.num_steps * constant_lr_ratio) if constant_lr_ratio else span.num_steps

    def after(step: int) -> float:
        wave = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * span.progress(step, end)))
        return min_lr_ratio + (1.0 - min_lr_ratio) * wave

    return span.warmed(after)


def cosine_with_min_lr(
    span: Span, min_lr: float | None = None, min_lr_rate: float | None = None, num_cycles: float = 0.5
) -> Schedule:
    """The same with its lowest rate given as a rate or, as `min_lr_rate`, as a share of the peak."""
    if (min_lr is None) == (min_lr_rate is None):
        raise RecipeError(
            "cosine_with_min_lr wants one of min_lr and min_lr_rate",
            where="lr_scheduler_kwargs",
            help="write `lr_scheduler_kwargs: {min_lr_rate: 0.1}`",
        )
    ratio = min_lr_rate if min_lr_rate is not None else (min_lr or 0.0) / span.peak
    return cosine(span, min_lr_ratio=ratio, num_cycles=num_cycles)


def cosine_with_restarts(span: Span, num_cycles: int = 1) -> Schedule:
    """Down to 0 along a cosine `num_cycles` times, each from the peak."""

    def after(step: int) -> float:
        progress = span.progress(step)
        return 0.0 if progress >= 1.0 else FALLS["cosine"]((num_cycles * progress) % 1.0)

    return span.warmed(after)


def polynomial(span: Span, lr_end: float = 1e-7, power: float = 1.0) -> Schedule:
    """Down to the rate `lr_end` along a power of what is left of the run."""
    lowest = lr_end / span.peak
    return span.warmed(lambda step: lowest + (1.0 - lowest) * (1.0 - span.progress(step)) ** power)


def inverse_sqrt(span: Span, timescale: int | None = None) -> Schedule:
    """Down as one over the root of the step (Vaswani et al. 2017); `timescale` is the warm-up when not given."""
    scale = timescale or span.num_warmup or 10_000
    return span.warmed(lambda step: 1.0 / math.sqrt((step - span.num_warmup + scale) / scale))


def one_cycle(
    span: Span, pct_start: float | None = None, div_factor: float = 25.0, final_div_factor: float = 1e4
) -> Schedule:
    """Up and down along half cosines (Smith & Topin 2018), as torch's OneCycleLR; momenta stay as they are.

    Args:
        span: the run.
        pct_start: share of the run that rises; the recipe's warm-up if it has one, else torch's 0.3.
        div_factor: peak / first rate.
        final_div_factor: first rate / last rate.
    """
    if pct_start is None:
        pct_start = span.num_warmup / span.num_steps if span.has_warmup else 0.3
    top, end = pct_start * span.num_steps - 1, span.num_steps - 1
    first, last = 1 / div_factor, 1 / (div_factor * final_div_factor)

    def factor(step: int) -> float:
        if step <= top:
            return first + (1.0 - first) * RISES["cosine"](step / top if top else 1.0)
        return last + (1.0 - last) * FALLS["cosine"](min(1.0, (step - top) / (end - top)))

    return factor


def rex(span: Span, min_lr_ratio: float = 0.0, bend: float = 0.9) -> Schedule:
    """Slow at first, fast at the end: z / (1 - bend + bend z), z being the share of the run that is left.

    The paper bends by 0.5; trainers of this recipe dialect took 0.9 from the schedule's first public implementation,
    which keeps the rate high for longer, and recipes were tuned with it.

    Source: Chen et al. 2021, "REX: Revisiting Budgeted Training with an Improved Schedule".
    """

    def after(step: int) -> float:
        left = 1.0 - span.progress(step)
        return min_lr_ratio + (1.0 - min_lr_ratio) * (left / (1.0 - bend + bend * left) if left else 0.0)

    return span.warmed(after)


def wsd(
    span: Span,
    num_decay_steps: int | None = None,
    num_stable_steps: int | None = None,
    decay_type: str = "cosine",
    warmup_type: str = "linear",
    min_lr_ratio: float = 0.0,
) -> Schedule:
    """Warm-up, a long stable stretch at the peak, a short decay (Hu et al. 2024, MiniCPM).

    Args:
        span: the run.
        num_decay_steps: a tenth of the run when not given, as in the paper.
        num_stable_steps: what the others leave, when not given.
        decay_type: `cosine`, `linear` or `1-sqrt`.
        warmup_type: the same.
        min_lr_ratio: first and last rate as a share of the peak.
    """
    rise, fall = curve(RISES, "warmup_type", warmup_type), curve(FALLS, "decay_type", decay_type)
    num_decay = math.ceil(span.num_steps / 10) if num_decay_steps is None else num_decay_steps
    stable = span.num_steps - span.num_warmup - num_decay if num_stable_steps is None else num_stable_steps
    start = span.num_warmup + stable

    def factor(step: int) -> float:
        if step < span.num_warmup:
            level = rise(step / span.num_warmup)
        elif step < start:
            level = 1.0
        else:
            level = fall(min(1.0, (step - start) / max(1, num_decay)))
        return min_lr_ratio + (1.0 - min_lr_ratio) * level

    return factor


def curve(curves: Mapping[str, Callable[[float], float]], option: str, name: str) -> Callable[[float], float]:
    """The curve that an option names."""
    if name not in curves:
        raise RecipeError(f"unknown {option}, got {name}", where="lr_scheduler_kwargs", help=f"use {', '.join(curves)}")
    return curves[name]
