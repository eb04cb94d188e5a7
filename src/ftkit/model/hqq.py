"""HQQ linears: integer codes of 2, 3, 4 or 8 bits with a scale and a zero point a group, for `quant_method: hqq`.

Half-quadratic quantization needs no data: it searches the zero point of every group that makes the error small in a
norm below one, so that few large errors (outliers) are preferred to many small ones. The library hqq does the search
and packs the codes; kept are three frozen uint8 parameters, for G groups of `group_size` weights in a row:

    weight     codes packed as hqq packs them along G: 8 / bits a byte, in 3 bits 10 an int32
    scales     float16, one a group
    zeros      float16, one a group (in units of codes)         w = (code - zero) * scale

float16 is what hqq itself keeps its constants in. A weight that does not fill its last group, or groups that do not
fill the last byte, are filled up with zeros, which decoding cuts off again.

Source: Badri and Shaji 2023, "Half-Quadratic Quantization of Large Machine Learning Models".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ftkit.errors import ModelError
from ftkit.model.quantized import QuantizedLinear
from ftkit.optional import need

CODES_A_UNIT = {8: 1, 4: 2, 3: 10, 2: 4}  # a unit is a byte, in 3 bits an int32
BYTES_A_UNIT = {8: 1, 4: 1, 3: 4, 2: 1}


class HqqLinear(QuantizedLinear):
    """A linear with its weight in `bits` bits; see the module's docstring for the layout.

    Raises:
        ModelError: the package hqq is not installed.
    """

    stored_names = ("weight", "scales", "zeros")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bits: int = 4,
        group_size: int = 64,
        bias_dtype: torch.dtype | None = None,
        device: torch.device | str = "meta",
    ) -> None:
        super().__init__(in_features, out_features, bias_dtype=bias_dtype, device=device)
        self.bits, self.group_size = bits, group_size
        library = need("hqq.core.quantize", extra="hqq", purpose="quant_method: hqq", error=ModelError)
        self.quantizer: Any = library.Quantizer
        num_groups = math.ceil(in_features * out_features / group_size)
        self.num_units = math.ceil(num_groups / CODES_A_UNIT[bits])  # along G
        self.num_groups = num_groups if bits == 3 else self.num_units * CODES_A_UNIT[bits]  # 3 bits: hqq fills up
        self.add_bytes("weight", self.num_units * group_size * BYTES_A_UNIT[bits], device)
        self.add_bytes("scales", 2 * self.num_groups, device)
        self.add_bytes("zeros", 2 * self.num_groups, device)

    def encode(self, weight: Tensor) -> Mapping[str, Tensor]:
        """Search scales and zero points with hqq, on the device of `weight`."""
        lacking = self.num_groups * self.group_size - weight.numel()
        groups = nn.functional.pad(weight.reshape(-1), (0, lacking)).view(self.num_groups, self.group_size)
        codes, found = self.quantizer.quantize(
            groups, nbits=self.bits, group_size=self.group_size, axis=1, device=str(weight.device)
        )
        parts = {"weight": codes, "scales": found["scale"].half(), "zeros": found["zero"].half()}
        return {name: part.clone().view(-1).view(torch.uint8) for name, part in parts.items()}  # no inference tensors

    def decode(self, stored: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Unpack with hqq; the arithmetic is float32, rounded once to `dtype`."""
        packed, scales, zeros = (part.detach() for part in stored)
        if self.bits == 3:
            packed = on_border(packed, 4).view(torch.int32)
        unpack = self.quantizer.unpack[self.quantizer.bit_to_packing[self.bits]]
        codes: Tensor = unpack(packed.view(self.num_units, self.group_size), dtype=torch.float32)[: self.num_groups]
        scales, zeros = (on_border(part, 2).view(torch.float16).view(-1, 1) for part in (scales, zeros))
        flat = codes.sub_(zeros).mul_(scales).view(-1)  # (G, group_size) -> (G * group_size,)
        return flat[: self.out_features * self.in_features].view(self.out_features, self.in_features).to(dtype)


def on_border(data: Tensor, size: int) -> Tensor:
    """`data` (uint8), copied only where a backend placed it off a border of `size` bytes."""
    return data.clone() if data.storage_offset() % size else data
