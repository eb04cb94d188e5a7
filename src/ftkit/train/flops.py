"""Floating point operations of training: what a token costs, and what a GPU could do in a second.

A weight costs 2 operations a token forward, 2 for the gradient of its input, 2 for its own gradient; a frozen one saves
the last 2. Recomputed activations do not count, by convention, nor does attention, whose share depends on the lengths
of the documents (4 % at 2048 tokens of an 8B model): mfu is a lower bound.

Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1; Chowdhery et al. 2022, "PaLM",
appendix B, for mfu.
"""

from __future__ import annotations

import math

from torch import nn

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 2, 2, 2  # operations a weight and token

# Dense bfloat16 (float16 where there is none) with float32 accumulation, in TFLOP/s, by a part of the name CUDA gives
# the device; longer names first. From NVIDIA's data sheets, sparsity taken off.
PEAKS: tuple[tuple[str, float], ...] = (
    ("B200", 2250.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H200", 989.0),
    ("H100", 989.0),
    ("H20", 148.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("A40", 150.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("A6000", 155.0),
    ("RTX 5090", 209.5),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.2),
    ("V100", 125.0),
    ("T4", 65.0),
)


def flops_per_token(net: nn.Module) -> float:
    """Return what a token costs forward and backward in the linears and experts of `net`.

    Every weight is counted by its layer's sizes, whatever form it is stored in; the net may be on meta. Of experts only
    those that a token is sent to count. The head counts in full, although it runs at target tokens only.
    """
    total = 0.0
    for module in net.modules():
        if hasattr(module, "base_layer"):
            continue  # an adapter's wrapper: its base and its own matrices come by themselves
        sizes = getattr(module, "in_features", None), getattr(module, "out_features", None)
        if isinstance(sizes[0], int) and isinstance(sizes[1], int):
            weight = module.get_parameter("weight")
            total += cost(sizes[0] * sizes[1], trained=weight.requires_grad)
        else:
            for parameter in module.parameters(recurse=False):
                if parameter.dim() == 3:  # experts
                    used = math.prod(parameter.shape) * share_of_experts(net, parameter.shape[0])
                    total += cost(used, trained=parameter.requires_grad)
    return total


def cost(num_weights: float, *, trained: bool) -> float:
    """Operations a token of so many weights."""
    return num_weights * (FORWARD + INPUT_GRADIENT + (WEIGHT_GRADIENT if trained else 0))


def share_of_experts(net: nn.Module, num_experts: int) -> float:
    """Share of a layer's experts that a token is sent to."""
    chosen = getattr(getattr(net, "config", None), "num_experts_per_tok", None)
    return 1.0 if chosen is None else min(1.0, chosen / num_experts)


def peak_flops(device_name: str, *, half_precision: bool) -> float | None:
    """Return operations a second of one GPU, None where they are not known.

    Args:
        device_name: `torch.cuda.get_device_name()`.
        half_precision: products run in bfloat16; float32's peaks are not listed.
    """
    if not half_precision:
        return None
    return next((peak * 1e12 for name, peak in PEAKS if name in device_name), None)
