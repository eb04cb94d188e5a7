"""What happens in a run, as values. The loop announces them; metrics file, console, plot and trackers listen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Started:
    """Training is about to begin, or to go on.

    Args:
        first_step: optimizer steps already done: 0, or those of the checkpoint.
    """

    num_steps: int
    first_step: int
    steps_per_epoch: int


@dataclass(frozen=True, slots=True)
class Logged:
    """A logged optimizer step; one line of metrics.jsonl, with these keys.

    Args:
        step: steps done, from 1.
        loss: token-exact mean since the previous logged step.
        grad_norm: of this step, before clipping.
        target_tokens: since the previous logged step, over all ranks.
        tokens_per_second: all tokens, target or not, over all ranks; evaluation and saving not counted.
        mfu: share of the device's peak, None where that is unknown.
        memory_gib: highest allocation on the GPU, or resident memory of the process on a CPU.
        data_seconds: waited for batches since the previous logged step.
    """

    step: int
    epoch: float
    loss: float
    grad_norm: float
    learning_rate: float
    target_tokens: int
    tokens_per_second: float
    mfu: float | None
    memory_gib: float | None
    data_seconds: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation; also a line of metrics.jsonl, with these keys."""

    step: int
    epoch: float
    eval_loss: float
    eval_target_tokens: int
    eval_seconds: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is whole."""

    step: int
    folder: Path
    seconds: float


@dataclass(frozen=True, slots=True)
class Warned:
    """Something a person should know; the run goes on."""

    step: int
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Training is over.

    Args:
        reason: `done`, or why it ended early.
    """

    step: int
    seconds: float
    reason: str


Event = Started | Logged | Evaluated | Saved | Warned | Ended
