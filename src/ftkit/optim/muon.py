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

from ftkit.optim.of_torch import Groups

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection


class MuonAndAdamW(Optimizer):
    """Two optimizers that share this one's parameter groups and state.

    Args:
        groups: with a `matrices` key that says which of the two has it.
        muon, adam: options of each.
    """

    def __init__(self, groups: Groups, muon: dict[str, Any], adam: dict[str, Any]) -> None:
        parts: list[Optimizer] = []
        if matrices := [group for group in groups if group["matrices"]]:
            parts.append(Muon(matrices, **muon))
        if others := [group for group in groups if not group["matrices"]]:
            parts.append(AdamW(others, **adam))
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        start = 0
        for part in parts:
            size = len(part.param_groups)
            part.param_groups = self.param_groups[start : start + size]
            part.state = self.state
            start += size

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step both."""
        assert closure is None
        for part in self.parts:
            part.step()


def muon(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """Muon and AdamW; `optim_args` go to Muon (momentum, nesterov, ns_steps, adjust_lr_fn)."""
    adam = {"betas": (section.adam_beta1, section.adam_beta2), "eps": section.adam_epsilon}
    return MuonAndAdamW(groups, {"adjust_lr_fn": "match_rms_adamw"} | dict(section.optim_args), adam)
