"""Optimizers of torch and transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection

Groups = list[dict[str, Any]]


def adam_options(section: OptimizationSection) -> dict[str, Any]:
    """The Adam keys of a recipe; `optim_args` win over them."""
    keys = {"betas": (section.adam_beta1, section.adam_beta2), "eps": section.adam_epsilon}
    return keys | dict(section.optim_args)


def adamw(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """AdamW (Loshchilov & Hutter 2019)."""
    return AdamW(groups, **adam_options(section))


def adamw_fused(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """AdamW whose update is one kernel."""
    return AdamW(groups, **adam_options(section), fused=True)


def sgd(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """Plain gradient descent; `optim_args: {momentum: 0.9}` for momentum."""
    return SGD(groups, **section.optim_args)


def adagrad(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """Adagrad (Duchi et al. 2011)."""
    return Adagrad(groups, **section.optim_args)


def rmsprop(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """RMSprop (Hinton 2012, lecture 6e)."""
    return RMSprop(groups, **section.optim_args)


def adafactor(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """Adafactor (Shazeer & Stern 2018) at the recipe's own learning rate, without a rate relative to the weights' size.

    transformers' rather than torch's: torch's always scales the rate by each weight's size, so that a learning rate out
    of a shared recipe would mean something else.
    """
    from transformers.optimization import Adafactor

    options = {"scale_parameter": False, "relative_step": False} | dict(section.optim_args)
    optimizer: Optimizer = Adafactor(groups, **options)  # type: ignore[no-untyped-call]
    return optimizer
