"""4-bit linears: NormalFloat4 and float4 in blocks of 64, the block scales quantized once more to 8 bits.

The bytes are those of bitsandbytes' `quantize_4bit`, kept as three frozen uint8 parameters:

    weight  two 4-bit codes a byte                                               D * O / 2 bytes
    absmax  one code a block of 64 weights (double quantization), else its float32
    scales  float32 per 256 blocks, then the float32 mean the block scales were centred on

Double quantization brings the constants from 0.5 to 0.127 bit a weight (1.6 GiB a rank of a 70B model on two).

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import bitsandbytes.functional as bnb
import torch
from torch import Tensor

from ftkit.model.quantized import QuantizedLinear, floats_of

BLOCK = 64  # weights a scale, bitsandbytes' default and what published QLoRA models use
WHOLE_BYTES = 2**27  # decoded weights up to this size are decoded at once (an 8B model's are), ...
PIECE_BYTES = 2**26  # ... larger ones (448 MiB in a 70B model) in pieces of this size
OUTER_BLOCK = 256  # scales an outer scale, fixed in bitsandbytes' quantize_4bit


class NF4Linear(QuantizedLinear):
    """A linear with its weight in 4 bits; see the module's docstring for the layout."""

    kind: ClassVar[Literal["nf4", "fp4"]] = "nf4"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        double_quantization: bool = True,
        bias_dtype: torch.dtype | None = None,
        device: torch.device | str = "meta",
    ) -> None:
        super().__init__(in_features, out_features, bias_dtype=bias_dtype, device=device)
        self.double_quantization = double_quantization
        num_blocks = math.ceil(in_features * out_features / BLOCK)
        self.add_bytes("weight", math.ceil(in_features * out_features / 2), device)
        self.add_bytes("absmax", num_blocks * (1 if double_quantization else 4), device)
        if double_quantization:
            self.add_bytes("scales", 4 * (math.ceil(num_blocks / OUTER_BLOCK) + 1), device)

    @property
    def stored_names(self) -> tuple[str, ...]:
        """See the module's docstring."""
        return ("weight", "absmax", "scales") if self.double_quantization else ("weight", "absmax")

    def encode(self, weight: Tensor) -> Mapping[str, Tensor]:
        """Quantize to bitsandbytes' bytes, on the CPU three times as fast."""
        if self.kind == "nf4" and weight.device.type == "cpu" and weight.numel() % BLOCK == 0:
            packed, absmax = pack_nf4(weight)
            return {"weight": packed, **self.constants(absmax)}
        packed, state = bnb.quantize_4bit(
            weight.contiguous(), blocksize=BLOCK, quant_type=self.kind, compress_statistics=False
        )
        return {"weight": packed.view(-1), **self.constants(state.absmax)}

    def constants(self, absmax: Tensor) -> Mapping[str, Tensor]:
        """Bytes of the block scales: themselves, or quantized about their mean as bitsandbytes does."""
        if not self.double_quantization:
            return {"absmax": absmax.float().view(torch.uint8)}
        mean = absmax.mean()
        codes, outer = bnb.quantize_blockwise(absmax - mean, blocksize=OUTER_BLOCK)
        scales = torch.cat([outer.absmax.float(), mean.float().view(1)])
        return {"absmax": codes, "scales": scales.view(torch.uint8)}

    def decode(self, stored: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Dequantize with bitsandbytes."""
        return self.dequantize(stored[0], block_scales(stored[1:]), self.out_features, dtype)

    def decode_pieces(self, stored: Sequence[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield a large weight in pieces: rows that are whole blocks lie together in codes and scales."""
        D, rows = self.in_features, max(1, PIECE_BYTES // (self.in_features * dtype.itemsize))
        scales = block_scales(stored[1:])
        if D % BLOCK or D * self.out_features * dtype.itemsize <= WHOLE_BYTES:
            rows = self.out_features
        for start in range(0, self.out_features, rows):
            end = min(start + rows, self.out_features)
            packed = stored[0].detach().view(-1)
            codes = packed if end - start == self.out_features else packed[start * D // 2 : end * D // 2]
            yield self.dequantize(codes, scales[start * D // BLOCK : -(-end * D // BLOCK)], end - start, dtype)

    def dequantize(self, codes: Tensor, scales: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
        """Some rows of the weight, from their packed codes and the float32 scale of each block."""
        state = bnb.QuantState(
            absmax=scales,
            shape=torch.Size((num_rows, self.in_features)),
            dtype=dtype,
            blocksize=BLOCK,
            quant_type=self.kind,
        )
        # bitsandbytes returns a transposed weight for a (1, n) input; (n, 1) is the form it packs
        weight: Tensor = bnb.dequantize_4bit(codes.detach().view(-1, 1), state)
        return weight


class FP4Linear(NF4Linear):
    """A linear with its weight in 4-bit floats, for recipes that ask for `bnb_4bit_quant_type: fp4`."""

    kind = "fp4"


def block_scales(constants: Sequence[Tensor]) -> Tensor:
    """Return the float32 scale of every block from (`absmax`,) or (`absmax`, `scales`)."""
    if len(constants) == 1:
        return floats_of(constants[0].detach())
    codes, outer = constants[0].detach(), floats_of(constants[1].detach())
    state = bnb.QuantState(
        absmax=outer[:-1], code=dynamic_code(codes.device), blocksize=OUTER_BLOCK, dtype=torch.float32
    )
    scales: Tensor = bnb.dequantize_blockwise(codes, state)
    return scales.add_(outer[-1])


def pack_nf4(weight: Tensor, *, chunk: int = 2**14) -> tuple[Tensor, Tensor]:
    """Quantize on the CPU: packed codes, two a byte, and the float32 scale of each block of 64.

    A code is the number of borders between NF4's values that a scaled weight exceeds. Counting them border by border
    runs over whole vectors in the cache, where bitsandbytes searches for each weight by itself. A chunk is below the
    grain size of torch, so no operation wakes other threads: on busy cores their waiting cost 50 times the work. And
    nothing but the result is ever as large as the weight, so the heap is left without holes.
    """
    values = bnb.get_4bit_type("nf4", device="cpu")
    borders = ((values[:-1] + values[1:]) / 2).tolist()
    flat = weight.reshape(-1)
    packed = torch.empty(flat.numel() // 2, dtype=torch.uint8)
    scales = torch.empty(flat.numel() // BLOCK)
    codes = torch.empty(chunk, dtype=torch.uint8)
    for start in range(0, flat.numel(), chunk):
        blocks = flat[start : start + chunk].float().view(-1, BLOCK)
        absmax = torch.amax(blocks.abs(), dim=1, out=scales[start // BLOCK : start // BLOCK + blocks.shape[0]])
        scaled = (blocks * (1.0 / absmax.clamp(min=1e-38)).unsqueeze(1)).view(-1)  # 1e-38: blocks of zeros
        part = codes[: scaled.numel()].zero_()
        for border in borders:
            part.add_(scaled > border)
        torch.bitwise_or(part[::2] << 4, part[1::2], out=packed[start // 2 : (start + scaled.numel()) // 2])
    return packed, scales


@functools.cache
def dynamic_code(device: torch.device) -> Tensor:
    """Bitsandbytes' 8-bit map for scales; a constant, kept so that no forward copies it to the device again."""
    code: Tensor = bnb.create_dynamic_map().to(device)
    return code
