"""Dynamic loss scaling: gradients of a multiple of the loss, for float16, whose smallest number is 6e-8.

A step whose gradients overflowed is skipped and the factor halved; after many good steps it is doubled again. Whether
they did is read off the norm over all ranks' gradients, so every rank decides alike without asking the others.

Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2; the numbers are those of torch's GradScaler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor

FIRST, GROWTH_INTERVAL = 65536.0, 2000
FILE = "loss_scale.json"


class LossScale:
    """The factor of one run; 1, and nothing happens, until it is begun."""

    def __init__(self) -> None:
        self.is_on, self.value, self.good_steps = False, 1.0, 0
        self.say: Callable[[str], None] = lambda note: None

    def begin(self, say: Callable[[str], None]) -> None:
        """Scale from now on; `say` hears of every step that is skipped."""
        self.is_on, self.value, self.say = True, FIRST, say

    def up(self, loss: Tensor) -> Tensor:
        """The loss to take gradients of."""
        return loss * self.value if self.is_on else loss

    def down(self, gradients: Iterable[Tensor | None], norm: float) -> float:
        """Take the factor out of `gradients` in place, before they are clipped; return their norm without it."""
        if not self.is_on or not math.isfinite(norm):
            return norm
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(1 / self.value)
        return norm / self.value

    def skips(self, norm: float, loss: float) -> bool:
        """Whether this step must be left out, its gradients being too large for float16; sets the next factor.

        A loss that is not finite is no matter of scale, and neither are gradients that overflow without any: they are
        not skipped but refused.

        Args:
            norm: of the gradients of all ranks.
            loss: of all ranks.
        """
        if not self.is_on or not math.isfinite(loss):
            return False
        if math.isfinite(norm):
            self.good_steps += 1
            if self.good_steps == GROWTH_INTERVAL:
                self.value, self.good_steps = self.value * 2, 0
            return False
        if self.value <= 1:
            return False
        self.value, self.good_steps = self.value / 2, 0
        self.say(f"gradients overflowed float16: step skipped, the loss is scaled by {self.value:g} now")
        return True

    def save(self, folder: Path) -> None:
        """Write the factor beside a checkpoint's shards."""
        if self.is_on:
            state = {"value": self.value, "good_steps": self.good_steps}
            (folder / FILE).write_text(json.dumps(state), encoding="utf8")

    def load(self, folder: Path) -> None:
        """Go on with the factor of a checkpoint, if it has one."""
        if self.is_on and (folder / FILE).is_file():
            state = json.loads((folder / FILE).read_text(encoding="utf8"))
            self.value, self.good_steps = float(state["value"]), int(state["good_steps"])
