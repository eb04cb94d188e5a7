"""The loop's settings, worked out of a recipe's sections and the number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from ftkit.train.cadence import Cadence, always, cadence, never

if TYPE_CHECKING:
    from ftkit.recipe.section.evaluation import EvaluationSection
    from ftkit.recipe.section.saving import SavingSection
    from ftkit.recipe.section.training import TrainingSection


class Lengths(Protocol):
    """How long a run is."""

    num_steps: int
    steps_per_epoch: int


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """What the loop must know beside its parts.

    Args:
        autocast: dtype of products (torch.bfloat16), None for the parameters' own.
        log_at, evaluate_at, save_at: whether something is due after so many steps; after the last step all are.
        watchdog_threshold: a logged loss above it is bad; `watchdog_patience` bad ones in a row end the run.
        saves: False never writes a checkpoint, not even after the last step.
        save_best: save after each evaluation with the lowest loss so far.
        stop_patience: evaluations in a row without a lower loss that end the run; None for never.
        flops_per_token, peak_flops: for mfu; None where unknown. Peak is of all devices together.
    """

    seed: int = 42
    autocast: torch.dtype | None = None
    log_at: Cadence = always
    evaluate_at: Cadence = never
    save_at: Cadence = never
    evaluate_on_start: bool = False
    saves: bool = True
    save_best: bool = False
    watchdog_threshold: float | None = None
    watchdog_patience: int = 3
    stop_patience: int | None = None
    flops_per_token: float | None = None
    peak_flops: float | None = None


def loop_options(
    training: TrainingSection,
    evaluation: EvaluationSection,
    saving: SavingSection,
    lengths: Lengths,
    *,
    autocast: torch.dtype | None,
    flops_per_token: float | None = None,
    peak_flops: float | None = None,
) -> LoopOptions:
    """Return the settings of a recipe whose run is `lengths` long."""
    size = {"num_steps": lengths.num_steps, "steps_per_epoch": lengths.steps_per_epoch}
    steps, times, strategy = evaluation.eval_steps, evaluation.evals_per_epoch, evaluation.eval_strategy
    return LoopOptions(
        seed=training.seed,
        autocast=autocast,
        log_at=cadence(training.logging_steps, None, None, **size),
        evaluate_at=cadence(steps, times, strategy, **size),
        saves=saving.save_strategy != "no",
        save_best=saving.save_strategy == "best",
        save_at=never
        if saving.save_strategy == "best"
        else cadence(saving.save_steps, saving.saves_per_epoch, saving.save_strategy, **size),
        evaluate_on_start=evaluation.eval_on_start,
        watchdog_threshold=evaluation.loss_watchdog_threshold,
        watchdog_patience=evaluation.loss_watchdog_patience or 3,
        stop_patience=evaluation.early_stopping_patience,
        flops_per_token=flops_per_token,
        peak_flops=peak_flops,
    )
