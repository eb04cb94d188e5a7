"""Where a run stands: the part of a checkpoint that is neither parameter nor optimizer state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TrainerState:
    """What the loop carries from step to step. Everything else is a function of `step`.

    Args:
        step: optimizer steps done.
        stopped: why the run ended early; a resumed run stays ended.
        window_loss, window_tokens: summed loss and target tokens since the last logged step.
        bad_losses: logged losses above the watchdog's threshold, in a row.
        best_eval_loss, evaluations_without_gain: for early stopping.
    """

    step: int = 0
    stopped: str | None = None
    window_loss: float = 0.0
    window_tokens: int = 0
    bad_losses: int = 0
    best_eval_loss: float | None = None
    evaluations_without_gain: int = 0
