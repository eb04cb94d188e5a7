"""Optimizers of bitsandbytes: states in 8 bits a block of 256, or paged out of GPU memory when that runs short.

Tensors below 4096 elements keep 32-bit states (bitsandbytes' `min_8bit_size`). On a CPU there is nothing to page.
Source: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from bitsandbytes import optim

from ftkit.optim.choice import Choice
from ftkit.optim.of_torch import adam_options

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection


def adamw_8bit(section: OptimizationSection, device: torch.device) -> Choice:
    """AdamW with 8-bit states."""
    return Choice(optim.AdamW, adam_options(section), kind(8))


def paged_adamw_8bit(section: OptimizationSection, device: torch.device) -> Choice:
    """AdamW with 8-bit states in memory the GPU can page out."""
    return Choice(optim.AdamW, adam_options(section), kind(8, device))


def paged_adamw_32bit(section: OptimizationSection, device: torch.device) -> Choice:
    """AdamW with 32-bit states in memory the GPU can page out."""
    return Choice(optim.AdamW, adam_options(section), kind(32, device))


def lion_8bit(section: OptimizationSection, device: torch.device) -> Choice:
    """Lion with an 8-bit state."""
    return Choice(optim.Lion, lion_options(section), kind(8))


def lion_32bit(section: OptimizationSection, device: torch.device) -> Choice:
    """Lion with a 32-bit state."""
    return Choice(optim.Lion, lion_options(section), kind(32))


def paged_lion_8bit(section: OptimizationSection, device: torch.device) -> Choice:
    """Lion with an 8-bit state in memory the GPU can page out."""
    return Choice(optim.Lion, lion_options(section), kind(8, device))


def paged_lion_32bit(section: OptimizationSection, device: torch.device) -> Choice:
    """Lion with a 32-bit state in memory the GPU can page out."""
    return Choice(optim.Lion, lion_options(section), kind(32, device))


def ademamix_8bit(section: OptimizationSection, device: torch.device) -> Choice:
    """AdEMAMix with 8-bit states."""
    return Choice(optim.AdEMAMix, ademamix_options(section), kind(8))


def ademamix_32bit(section: OptimizationSection, device: torch.device) -> Choice:
    """AdEMAMix with 32-bit states."""
    return Choice(optim.AdEMAMix, ademamix_options(section), kind(32))


def paged_ademamix_8bit(section: OptimizationSection, device: torch.device) -> Choice:
    """AdEMAMix with 8-bit states in memory the GPU can page out."""
    return Choice(optim.AdEMAMix, ademamix_options(section), kind(8, device))


def paged_ademamix_32bit(section: OptimizationSection, device: torch.device) -> Choice:
    """AdEMAMix with 32-bit states in memory the GPU can page out."""
    return Choice(optim.AdEMAMix, ademamix_options(section), kind(32, device))


def rmsprop_8bit(section: OptimizationSection, device: torch.device) -> Choice:
    """RMSprop with an 8-bit state."""
    return Choice(optim.RMSprop, fixed={"optim_bits": 8})


def rmsprop_32bit(section: OptimizationSection, device: torch.device) -> Choice:
    """RMSprop with a 32-bit state."""
    return Choice(optim.RMSprop, fixed={"optim_bits": 32})


def kind(bits: int, paged_on: torch.device | None = None) -> dict[str, Any]:
    """What a name says: bits of the states, and whether they are paged (on a GPU only)."""
    return {"optim_bits": bits, "is_paged": paged_on is not None and paged_on.type == "cuda"}


def lion_options(section: OptimizationSection) -> dict[str, Any]:
    """Lion (Chen et al. 2023): one state; wants a third to a tenth of AdamW's learning rate."""
    return {"betas": (section.adam_beta1, section.adam_beta2)}


def ademamix_options(section: OptimizationSection) -> dict[str, Any]:
    """AdEMAMix (Pagliardini et al. 2024): a second, slower average of the gradients, whose decay the paper sets."""
    return {"betas": (section.adam_beta1, section.adam_beta2, 0.9999), "eps": section.adam_epsilon}
