"""Muon for the matrices inside the net, AdamW for everything else, as one optimizer.

Muon makes the momentum of a matrix orthogonal before it steps, so that all directions move alike. It is meant for
linear maps between hidden states; embeddings, head, norms and biases take AdamW.

Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the rate is matched to AdamW's as
in Liu et al. 2025, "Muon is Scalable for LLM Training", so a recipe's learning rate serves both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import AdamW, Muon, Optimizer

from ftkit.optim.choice import Choice
from ftkit.optim.of_torch import adam_options

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection


def muon(section: OptimizationSection, device: torch.device) -> Choice:
    """Muon and AdamW, which has the recipe's Adam keys."""
    return Choice(MuonAndAdamW, adam_options(section), elementwise=False)


class MuonAndAdamW(Optimizer):
    """Two optimizers that share this one's parameter groups and state.

    Args:
        groups: with a `matrices` key that says which of the two has it.
        betas, eps: AdamW's.
        momentum, nesterov, ns_steps, adjust_lr_fn: Muon's.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        momentum: float = 0.95,
        *,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
    ) -> None:
        parts: list[Optimizer] = []
        if matrices := [group for group in groups if group["matrices"]]:
            options: dict[str, Any] = {"nesterov": nesterov, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
            parts.append(Muon(matrices, momentum=momentum, **options))
        if others := [group for group in groups if not group["matrices"]]:
            parts.append(AdamW(others, betas=betas, eps=eps))
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.share()

    def share(self) -> None:
        """Let the parts work on this optimizer's own groups and state."""
        start = 0
        for part in self.parts:
            size = len(part.param_groups)
            part.param_groups = self.param_groups[start : start + size]
            part.state = self.state
            start += size

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a saved state; torch puts new groups and a new state in place of those the parts know."""
        super().load_state_dict(state_dict)
        self.share()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step both."""
        assert closure is None
        for part in self.parts:
            part.step()
