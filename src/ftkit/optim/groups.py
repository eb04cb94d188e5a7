"""Which trainable parameters decay, and which are matrices for optimizers that treat these apart.

Decayed are weights of two or more dimensions; biases, norms and other vectors are not: pulling a scale or an offset to
zero regularises nothing (Loshchilov & Hutter 2019 decay weights; GPT-3 and Llama leave out norms and biases).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection


def build_groups(net: nn.Module, section: OptimizationSection) -> list[dict[str, Any]]:
    """Return the parameter groups of what is trainable in `net`, in the net's own order.

    Every group has `params`, `lr`, `weight_decay` and `matrices`: whether its parameters are linear maps inside the
    net, which is what Muon is for; embeddings, head and vectors are not.
    """
    outside = embeddings_and_head(net)
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in net.parameters():
        if parameter.requires_grad:
            is_weight = parameter.dim() > 1
            is_matrix = parameter.dim() == 2 and id(parameter) not in outside
            groups.setdefault((is_weight, is_matrix), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": section.learning_rate,
            "weight_decay": section.weight_decay if is_weight else 0.0,
            "matrices": is_matrix,
        }
        for (is_weight, is_matrix), parameters in groups.items()
    ]


def group_builder(section: OptimizationSection) -> Callable[[nn.Module], list[dict[str, Any]]]:
    """Return `build_groups` for `section`, as `Backend.finish` wants it."""
    return lambda net: build_groups(net, section)


def embeddings_and_head(net: nn.Module) -> set[int]:
    """Identities of the parameters of token embeddings and of the output head."""
    modules = [module for module in net.modules() if isinstance(module, nn.Embedding)]
    find_head = getattr(net, "get_output_embeddings", None)
    head = find_head() if find_head is not None else None
    return {id(parameter) for module in (*modules, head) if module is not None for parameter in module.parameters()}
