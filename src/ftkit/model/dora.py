"""DoRA on any of our linears: PEFT's own computation, given the weight a quantized linear stands for.

PEFT reads `base_layer.weight` as floats (it knows the quantized linears of a few libraries, not ours). So its DoRA is
handed a stand-in that holds the decoded weight for the length of one forward.

Source: Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation".
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from peft.tuners.lora.dora import DoraLinearLayer
from peft.tuners.lora.variants import DoraLinearVariant
from torch import Tensor, nn

from ftkit.model.quantized import QuantizedLinear


class QuantizedDora(DoraLinearVariant):  # type: ignore[misc]
    """PEFT's DoRA variant for a layer whose base is a `QuantizedLinear`."""

    @staticmethod
    def init(module: Any, adapter_name: str, **kwargs: Any) -> None:
        """Give the layer its magnitude vector, without values: the loader sets it once the weight is there."""
        module.adapter_layer_names = (*module.adapter_layer_names, "lora_magnitude_vector")
        layer = DoraLinearLayer(fan_in_fan_out=False)
        layer.weight = nn.Parameter(torch.empty(module.out_features, device=module.lora_A[adapter_name].weight.device))
        module.lora_magnitude_vector[adapter_name] = layer

    @staticmethod
    def forward(module: Any, active_adapter: str, x: Tensor, result: Tensor, **kwargs: Any) -> Tensor:
        """Add DoRA's term to `result`, the base layer's output."""
        base, dropout = module.get_base_layer(), module.lora_dropout[active_adapter]
        plain = SimpleNamespace(weight=base.weight_in(x.dtype), bias=base.bias)
        drops = module.training and isinstance(dropout, nn.Dropout)
        term: Tensor = module.lora_magnitude_vector[active_adapter](
            dropout(x),
            lora_A=module.lora_A[active_adapter],
            lora_B=module.lora_B[active_adapter],
            scaling=module.scaling[active_adapter],
            base_layer=plain,
            base_result=None if drops else result,
            adapter_name=active_adapter,
        )
        return result + term


def magnitudes(layer: Any) -> Tensor:
    """Norm of each row of the base weight, (O,): what DoRA's magnitude vector is at first, while B is zero."""
    base = layer.get_base_layer()
    weight = base.weight_in(torch.float32) if isinstance(base, QuantizedLinear) else base.weight.detach().float()
    norm: Tensor = torch.linalg.vector_norm(weight.t() if layer.fan_in_fan_out else weight, dim=1)
    return norm
