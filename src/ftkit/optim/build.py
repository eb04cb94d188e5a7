"""From a recipe's optimizer keys to an optimizer."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from ftkit.catalog import OPTIMIZERS, load
from ftkit.errors import RecipeError

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection

Groups = Sequence[Mapping[str, Any]]
OptimizerFactory = Callable[[Groups], Optimizer]


def build_optimizer(section: OptimizationSection, device: torch.device) -> OptimizerFactory:
    """Return the function that makes the optimizer of `section` over parameter groups (from `build_groups`).

    Args:
        device: where the parameters are.

    Raises:
        RecipeError: the name is unknown, or `optim_args` are not what this optimizer takes.
    """
    if section.optimizer not in OPTIMIZERS:
        close = difflib.get_close_matches(section.optimizer, OPTIMIZERS, n=3) or sorted(OPTIMIZERS)
        raise RecipeError(
            f"unknown optimizer, got {section.optimizer}", where="optimizer", help=f"use {', '.join(close)}"
        )
    builder = load(OPTIMIZERS[section.optimizer])

    def build(groups: Groups) -> Optimizer:
        try:
            optimizer: Optimizer = builder([dict(group) for group in groups], section, device)
        except TypeError as wrong:  # a keyword its constructor does not know
            raise RecipeError(
                f"{section.optimizer} does not take these options, got {dict(section.optim_args)} ({wrong})",
                where="optim_args",
                help="take the unknown option out",
            ) from wrong
        return optimizer

    return build
