"""Optimizers of bitsandbytes: states in 8 bits a block of 256, or paged out of GPU memory when that runs short.

Tensors below 4096 elements keep 32-bit states (bitsandbytes' `min_8bit_size`).
Source: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from bitsandbytes import optim
from torch.optim import Optimizer

from ftkit.optim.of_torch import Groups, adam_options

if TYPE_CHECKING:
    from ftkit.recipe.section.optimization import OptimizationSection


def build_adamw(groups: Groups, section: OptimizationSection, **kind: Any) -> Optimizer:
    """AdamW; `kind` is its bits and paging."""
    optimizer: Optimizer = optim.AdamW(groups, **adam_options(section), **kind)
    return optimizer


def build_lion(groups: Groups, section: OptimizationSection, **kind: Any) -> Optimizer:
    """Lion (Chen et al. 2023): one state; wants a third to a tenth of AdamW's learning rate."""
    betas = (section.adam_beta1, section.adam_beta2)
    optimizer: Optimizer = optim.Lion(groups, **({"betas": betas} | dict(section.optim_args)), **kind)
    return optimizer


def build_ademamix(groups: Groups, section: OptimizationSection, **kind: Any) -> Optimizer:
    """AdEMAMix (Pagliardini et al. 2024): a second, slower average of the gradients."""
    betas = (section.adam_beta1, section.adam_beta2, 0.9999)
    options = {"betas": betas, "eps": section.adam_epsilon} | dict(section.optim_args)
    optimizer: Optimizer = optim.AdEMAMix(groups, **options, **kind)
    return optimizer


def adamw_8bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """AdamW with 8-bit states."""
    return build_adamw(groups, section, optim_bits=8)


def paged_adamw_8bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """AdamW with 8-bit states in memory the GPU can page out; on a CPU there is nothing to page."""
    return build_adamw(groups, section, optim_bits=8, is_paged=device.type == "cuda")


def paged_adamw_32bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """AdamW with 32-bit states in memory the GPU can page out."""
    return build_adamw(groups, section, optim_bits=32, is_paged=device.type == "cuda")


def lion_8bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """Lion with an 8-bit state."""
    return build_lion(groups, section, optim_bits=8)


def lion_32bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """Lion with a 32-bit state."""
    return build_lion(groups, section, optim_bits=32)


def paged_lion_8bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """Lion with an 8-bit state in memory the GPU can page out."""
    return build_lion(groups, section, optim_bits=8, is_paged=device.type == "cuda")


def paged_lion_32bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """Lion with a 32-bit state in memory the GPU can page out."""
    return build_lion(groups, section, optim_bits=32, is_paged=device.type == "cuda")


def ademamix_32bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """AdEMAMix with 32-bit states."""
    return build_ademamix(groups, section, optim_bits=32)


def ademamix_8bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """AdEMAMix with 8-bit states."""
    return build_ademamix(groups, section, optim_bits=8)


def paged_ademamix_32bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """AdEMAMix with 32-bit states in memory the GPU can page out."""
    return build_ademamix(groups, section, optim_bits=32, is_paged=device.type == "cuda")


def paged_ademamix_8bit(groups: Groups, section: OptimizationSection, device: torch.device) -> Optimizer:
    """AdEMAMix with 8-bit states in memory the GPU can page out."""
    return build_ademamix(groups, section, optim_bits=8, is_paged=device.type == "cuda")
