"""8-bit linears: one int8 code a weight, one float32 scale a row, for recipes that say `load_in_8bit`.

The bytes are those of bitsandbytes' `int8_vectorwise_quant`, kept as two frozen uint8 parameters:

    weight  an int8 code in each byte, w = code * scale / 127                    D * O bytes
    scales  float32 largest absolute value of each row                           4 * O bytes

Products are taken with the weight decoded to the dtype of the input. LLM.int8() quantizes the input as well and
splits off its outlying features (`llm_int8_threshold`), which saves memory traffic in inference; in training the input
is as large as the weight, its rounding would be noise in every gradient, and outliers would have to be searched in
every step. Decoding computes with exactly the weight that is stored, so forward, backward and merge agree.

Source: Dettmers et al. 2022, "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import bitsandbytes.functional as bnb
import torch
from torch import Tensor

from ftkit.errors import ModelError
from ftkit.model.quantized import QuantizedLinear, floats_of

LARGEST = 127  # code of a row's largest weight


class Int8Linear(QuantizedLinear):
    """A linear with its weight in 8 bits; see the module's docstring for the layout."""

    stored_names = ("weight", "scales")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias_dtype: torch.dtype | None = None,
        device: torch.device | str = "meta",
    ) -> None:
        super().__init__(in_features, out_features, bias_dtype=bias_dtype, device=device)
        self.add_bytes("weight", in_features * out_features, device)
        self.add_bytes("scales", 4 * out_features, device)

    def encode(self, weight: Tensor) -> Mapping[str, Tensor]:
        """Quantize with bitsandbytes, through float16 as its own 8-bit linear does.

        Raises:
            ModelError: a weight that float16 cannot hold.
        """
        codes, scales, _ = bnb.int8_vectorwise_quant(weight.to(torch.float16).contiguous())
        if not scales.isfinite().all():
            raise ModelError(
                f"8 bits hold weights up to 65504, got {float(weight.abs().max()):g}",
                where="load_in_8bit",
                help="use load_in_4bit: true, or look whether the checkpoint is broken",
            )
        return {"weight": codes.view(torch.uint8).view(-1), "scales": scales.float().view(torch.uint8)}

    def decode(self, stored: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Multiply codes and scales in float32, rounded once to `dtype`, without a float32 copy of the weight."""
        codes, scales = stored[0].detach(), floats_of(stored[1].detach())
        codes = codes.view(torch.int8).view(self.out_features, self.in_features)
        weight = torch.empty(codes.shape, dtype=dtype, device=codes.device)
        return torch.mul(codes, (scales / LARGEST).unsqueeze(1), out=weight)  # (O, D) * (O, 1)
