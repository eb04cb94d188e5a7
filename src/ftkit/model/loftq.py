"""LoftQ: an adapter that starts by making up for what quantizing its base took away.

Plain LoRA on a quantized base starts at the rounded weights, with B = 0. LoftQ starts A and B at the best approximation
of rank r to the rounding error, W - Q(W) ~ B A, from its singular value decomposition: the first step already sees a
net nearer to the unquantized one. This is PEFT's `loftq_init` with one iteration, and its `replace_lora_weights_loftq`
on a quantized base; like these it leaves the adapter's scale out, so only alpha / r = 1 makes up for all of B A.

The base is kept in its quantized bytes, and what is exported is the adapter alone. It holds the correction, so it
belongs on the same quantized base, loaded with transformers' BitsAndBytesConfig (load_in_4bit, nf4, no double
quantization unless the recipe asks for it; or load_in_8bit), or merged with `ftkit merge --faithful`. On the base in 16
bits it would correct errors that are not there. Linears that no quantizer stores (a head) start as plain LoRA does.

Source: Li et al. 2023, "LoftQ: LoRA-Fine-Tuning-Aware Quantization for Large Language Models", arXiv:2310.08659.

Shapes: D in_features, O out_features, R rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ftkit.model.quantized import QuantizedLinear


@torch.no_grad()
def correction(weight: Tensor, stored: QuantizedLinear, rank: int) -> dict[str, Tensor]:
    """Return `lora_A` (R, D) and `lora_B` (O, R), float32, whose product is nearest to what `stored` lost of `weight`.

    Args:
        weight: what `stored` was filled with, (O, D).
    """
    error = weight.float() - stored.weight_in(torch.float32)
    left, singular, right = torch.linalg.svd(error, full_matrices=False)  # (O, K), (K,), (K, D)
    root = singular[:rank].sqrt()
    return {"lora_A": (root[:, None] * right[:rank]).contiguous(), "lora_B": (left[:, :rank] * root).contiguous()}
