"""Which trainable parameters decay, at what rate each learns, and which are matrices for optimizers that ask.

Decayed are weights of two or more dimensions; biases, norms and other vectors are not: pulling a scale or an offset to
zero regularises nothing (Loshchilov & Hutter 2019 decay weights; GPT-3 and Llama leave out norms and biases).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from ftkit.errors import RecipeError

if TYPE_CHECKING:
    from ftkit.recipe.section.adapter import AdapterSection
    from ftkit.recipe.section.optimization import OptimizationSection

DEFAULT_EMBEDDING_RATE = 1e-6  # LoRA+'s own, which PEFT takes too


def build_groups(
    net: nn.Module, section: OptimizationSection, adapter: AdapterSection | None = None
) -> list[dict[str, Any]]:
    """Return the parameter groups of what is trainable in `net`, in the net's own order, the recipe's own rate first.

    Every group has `params`, `lr`, `weight_decay` and `matrices`: whether its parameters are linear maps inside the
    net, which is what Muon is for; embeddings, head and vectors are not.

    Args:
        net: with its frozen parameters marked as such.
        section: the recipe's optimizer.
        adapter: the recipe's adapter, for the rates of LoRA+.

    Raises:
        RecipeError: nothing is trainable.
    """
    outside = embeddings_and_head(net)
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            rate = section.learning_rate if adapter is None else loraplus_rate(name, parameter, section, adapter)
            decay = section.weight_decay if parameter.dim() > 1 else 0.0
            is_matrix = parameter.dim() == 2 and id(parameter) not in outside
            groups.setdefault((rate, decay, is_matrix), []).append(parameter)
    if not groups:
        raise RecipeError(
            "no parameter of the model is trained",
            where="lora_target_modules" if adapter is not None and adapter.adapter else "base_model",
            help="name modules that the model has, or leave `adapter` out to train all weights",
        )
    return [
        {"params": parameters, "lr": rate, "weight_decay": decay, "matrices": is_matrix}
        for (rate, decay, is_matrix), parameters in sorted(
            groups.items(), key=lambda g: g[0][0] != section.learning_rate
        )
    ]


def group_builder(
    section: OptimizationSection, adapter: AdapterSection | None = None
) -> Callable[[nn.Module], list[dict[str, Any]]]:
    """Return `build_groups` for these sections, as `Backend.finish` wants it."""
    return lambda net: build_groups(net, section, adapter)


def loraplus_rate(name: str, parameter: nn.Parameter, section: OptimizationSection, adapter: AdapterSection) -> float:
    """The rate of one parameter: LoRA+ lets B, which starts at zero, and vectors learn faster than A.

    Source: Hayou et al. 2024, "LoRA+: Efficient Low Rank Adaptation of Large Models".
    """
    if not adapter.loraplus_lr_ratio:
        return section.learning_rate
    if ".lora_embedding_" in name:
        given = adapter.loraplus_lr_embedding
        return DEFAULT_EMBEDDING_RATE if given is None else given
    faster = ".lora_B." in name or parameter.dim() == 1
    return section.learning_rate * adapter.loraplus_lr_ratio if faster else section.learning_rate


def embeddings_and_head(net: nn.Module) -> set[int]:
    """Identities of the parameters of token embeddings and of the output head."""
    modules = [module for module in net.modules() if isinstance(module, nn.Embedding)]
    find_head = getattr(net, "get_output_embeddings", None)
    head = find_head() if find_head is not None else None
    return {id(parameter) for module in (*modules, head) if module is not None for parameter in module.parameters()}
