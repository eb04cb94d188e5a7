"""Optimizers of torch and transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD, Adagrad, AdamW, RMSprop

from ftkit.optim.choice import Choice

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection


def adam_options(section: OptimizationSection) -> dict[str, Any]:
    """The Adam keys of a recipe."""
    return {"betas": (section.adam_beta1, section.adam_beta2), "eps": section.adam_epsilon}


def adamw(section: OptimizationSection, device: torch.device) -> Choice:
    """AdamW (Loshchilov & Hutter 2019)."""
    return Choice(AdamW, adam_options(section))


def adamw_fused(section: OptimizationSection, device: torch.device) -> Choice:
    """AdamW whose update is one kernel."""
    return Choice(AdamW, adam_options(section), {"fused": True})


def sgd(section: OptimizationSection, device: torch.device) -> Choice:
    """Plain gradient descent; `optim_args: {momentum: 0.9}` for momentum."""
    return Choice(SGD)


def adagrad(section: OptimizationSection, device: torch.device) -> Choice:
    """Adagrad (Duchi et al. 2011)."""
    return Choice(Adagrad)


def rmsprop(section: OptimizationSection, device: torch.device) -> Choice:
    """RMSprop (Hinton 2012, lecture 6e)."""
    return Choice(RMSprop)


def adafactor(section: OptimizationSection, device: torch.device) -> Choice:
    """Adafactor (Shazeer & Stern 2018) at the recipe's own learning rate, without a rate relative to the weights' size.

    transformers' rather than torch's: torch's always scales the rate by each weight's size, so that a learning rate out
    of a shared recipe would mean something else.
    """
    from transformers.optimization import Adafactor

    fixed = {"relative_step": False, "warmup_init": False}
    # transformers' step mixes plain tensors with the DTensors of shared parameters, which torch refuses
    return Choice(Adafactor, {"scale_parameter": False}, fixed, elementwise=False, shardable=False)
