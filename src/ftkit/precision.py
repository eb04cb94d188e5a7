"""How a run holds its numbers: five policies by name, and the keys of the dialect that mean one of them.

A policy is about floats alone. Bytes of quantized weights are never cast, and buffers (rotary tables) keep the float32
that their model computes them in, whatever the policy. Norms and softmax run in float32 inside the models themselves.

| policy                  | frozen weights | trained weights | products | loss scaled |
|-------------------------|----------------|-----------------|----------|-------------|
| `fp32`                  | float32        | float32         | float32  |             |
| `bf16`                  | bfloat16       | bfloat16        | bfloat16 |             |
| `bf16_buffers_autocast` | bfloat16       | bfloat16        | autocast to bfloat16 |   |
| `mp_bf16_autocast`      | bfloat16       | float32         | autocast to bfloat16 |   |
| `mp_fp16_autocast`      | float16        | float32         | autocast to float16  | yes |

Without an adapter all weights are trained, so the frozen column says nothing then. `bf16` and
`bf16_buffers_autocast` update weights of 8 bits of precision: small steps round to nothing, which is the price of half
the memory; autocast lets what is sensitive (losses, norms written for it) stay in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from ftkit.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Policy:
    """Dtypes of the net's frozen and trained floats, and of products where that is another (autocast).

    Args:
        scales_loss: gradients are computed of a multiple of the loss, since float16 has no room for small ones.
    """

    frozen: torch.dtype
    trained: torch.dtype
    autocast: torch.dtype | None = None
    scales_loss: bool = False


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "fp32": Policy(torch.float32, torch.float32),
        "bf16": Policy(torch.bfloat16, torch.bfloat16),
        "bf16_buffers_autocast": Policy(torch.bfloat16, torch.bfloat16, torch.bfloat16),
        "mp_bf16_autocast": Policy(torch.bfloat16, torch.float32, torch.bfloat16),
        "mp_fp16_autocast": Policy(torch.float16, torch.float32, torch.float16, scales_loss=True),
    }
)


@dataclass(frozen=True, slots=True)
class Precision:
    """A policy for one run.

    Args:
        name: of the policy.
        weights: dtype of the net's floats but the adapter's; without an adapter they are trained.
        trained: dtype of what is trained.
        autocast: dtype of products, None for that of the weights.
        scales_loss: see `Policy`.
    """

    name: str
    weights: torch.dtype
    trained: torch.dtype
    autocast: torch.dtype | None
    scales_loss: bool = False


def precision(recipe: Recipe, *, fast_bf16: bool) -> Precision:
    """Choose the precision of a recipe, already fitted to its machine.

    Args:
        fast_bf16: whether `bf16: auto` means bfloat16.
    """
    name = policy_name(recipe, fast_bf16=fast_bf16)
    policy = POLICIES[name]
    weights = policy.frozen if recipe.adapter.adapter else policy.trained
    return Precision(name, weights, policy.trained, policy.autocast, policy.scales_loss)


def policy_name(recipe: Recipe, *, fast_bf16: bool) -> str:
    """The policy that the recipe names, or that its keys `bf16` and `fp16` mean."""
    training = recipe.training
    if training.precision is not None:
        return training.precision
    if training.fp16:
        return "mp_fp16_autocast"
    if training.bf16 == "full":
        return "bf16"
    wanted = training.bf16 is True or (training.bf16 == "auto" and fast_bf16)
    return "mp_bf16_autocast" if wanted else "fp32"
