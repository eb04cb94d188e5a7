"""From a recipe's optimizer keys to an optimizer; what can be wrong with them is found before a weight is read."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from ftkit.catalog import OPTIMIZERS, load
from ftkit.errors import RecipeError
from ftkit.optim.choice import Choice, Groups

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection

OWN_KEYS = {"lr": "learning_rate", "weight_decay": "weight_decay"}  # options that have keys of their own in a recipe


@dataclass(frozen=True, slots=True)
class OptimizerBuilder:
    """Makes an optimizer over parameter groups (from `build_groups`)."""

    choice: Choice
    options: Mapping[str, Any]

    @property
    def elementwise(self) -> bool:
        """Whether each number of a parameter is stepped by itself."""
        return self.choice.elementwise

    @property
    def shardable(self) -> bool:
        """Whether it can step parameters that FSDP2 has shared out."""
        return self.choice.shardable

    def __call__(self, groups: Groups) -> Optimizer:
        """Make it."""
        return self.choice.constructor([dict(group) for group in groups], **self.options)


def build_optimizer(section: OptimizationSection, device: torch.device) -> OptimizerBuilder:
    """Return what makes the optimizer of `section`.

    Args:
        section: the recipe's keys.
        device: where the parameters will be.

    Raises:
        RecipeError: the name is unknown, or `optim_args` are not what this optimizer takes.
    """
    if section.optimizer not in OPTIMIZERS:
        close = difflib.get_close_matches(section.optimizer, OPTIMIZERS, n=3) or sorted(OPTIMIZERS)
        raise RecipeError(
            f"unknown optimizer, got {section.optimizer}", where="optimizer", help=f"use {' or '.join(close)}"
        )
    choice: Choice = load(OPTIMIZERS[section.optimizer])(section, device)
    refuse_unknown(section, choice)
    options = {**choice.defaults, **section.optim_args, **choice.fixed}
    try_values(section, choice, options)
    return OptimizerBuilder(choice, options)


def refuse_unknown(section: OptimizationSection, choice: Choice) -> None:
    """Raise one error naming every key of `optim_args` that would be unknown or without effect."""
    _, *known = inspect.signature(choice.constructor).parameters  # the first are the groups
    allowed = [name for name in known if name not in OWN_KEYS and name not in choice.fixed]
    problems = [
        f"{name} ({'has the key ' + OWN_KEYS[name] if name in OWN_KEYS else 'unknown'})"
        if name not in choice.fixed
        else f"{name} (the name {section.optimizer} says it)"
        for name in section.optim_args
        if name not in allowed
    ]
    if problems:
        raise RecipeError(
            f"{section.optimizer} does not take these options, got {', '.join(problems)}",
            where="optim_args",
            help=f"take them out; it knows {', '.join(allowed)}",
        )


def try_values(section: OptimizationSection, choice: Choice, options: Mapping[str, Any]) -> None:
    """Build the optimizer once over a parameter of one number, for its own opinion of the values."""
    group = {
        "params": [torch.nn.Parameter(torch.zeros(1, 1))],
        "lr": section.learning_rate,
        "weight_decay": section.weight_decay,
        "matrices": True,
    }
    try:
        choice.constructor([group], **options)
    except (TypeError, ValueError) as wrong:
        raise RecipeError(
            f"{section.optimizer} refuses its options, got {dict(options)} ({wrong})",
            where="optim_args" if section.optim_args else "optimizer",
            help="mend the value, or the key it comes from (learning_rate, weight_decay, adam_beta1, adam_beta2, "
            "adam_epsilon)",
        ) from wrong
