"""The end of a step: one norm, one loss, one decision for all ranks, before any parameter moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ftkit.errors import BackendError
from ftkit.parallel.process_group import all_reduced


def total_norm(gradients: Iterable[Tensor], device: torch.device) -> Tensor:
    """The 2-norm of all `gradients` together: a float32 scalar on `device`, 0 if there are none."""
    return nn.utils.get_total_norm(list(gradients)).to(device, torch.float32)


def agreed(norm: Tensor, loss: Tensor, *, parts: int = 1) -> tuple[float, float]:
    """The norm over all ranks' gradients and the loss over all ranks; the one wait for the device in a step.

    A sum over ranks carries what is not finite on one rank to all of them, so all decide alike.

    Args:
        norm: of this rank's gradients.
        loss: this rank's share of the step's loss.
        parts: on how many ranks each gradient counts: 1 where every rank holds another part of it, the number of
            ranks where all hold the whole.
    """
    squares = torch.stack([norm.double().square() / parts, loss.double()])
    square, total = all_reduced(squares, "sum").tolist()
    return math.sqrt(square) if square >= 0 else square, total


def refuse_not_finite(norm: float, loss: float, gradients: Mapping[str, Tensor | None]) -> None:
    """Raise where the loss or the norm is no number, or infinite.

    Args:
        gradients: this rank's, by name of the parameter: where to look for the first that is not finite.

    Raises:
        BackendError: names value and place; no parameter has been changed.
    """
    if math.isfinite(norm) and math.isfinite(loss):
        return
    what, value = ("loss", loss) if not math.isfinite(loss) else ("gradient norm", norm)
    name = next((name for name, g in gradients.items() if g is not None and not bool(g.isfinite().all())), None)
    at = f" (first in {name})" if name else ""
    raise BackendError(
        f"the {what} is not finite, got {value}{at}; no parameter has been changed",
        help="look at the rows of this step; else lower learning_rate or max_grad_norm, or train in fp32",
    )


def clip(parameters: Iterable[Tensor], max_norm: float, norm: Tensor | float) -> None:
    """Scale the gradients of `parameters` down to a global norm of `max_norm`, as torch does; 0 leaves them.

    Args:
        norm: of all gradients of all ranks.
    """
    if max_norm > 0:
        nn.utils.clip_grads_with_norm_(list(parameters), max_norm, torch.as_tensor(norm))
