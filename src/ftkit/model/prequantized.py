"""Checkpoints whose linears bitsandbytes has quantized already: their bytes are taken as they are.

transformers saves such a weight as several tensors. In 4 bits (N blocks of 64 weights):

    NAME.weight                                   packed codes, in any dtype that bnb_4bit_quant_storage named
    NAME.weight.absmax                            (N,) float32, or uint8 with double quantization
    NAME.weight.nested_absmax                     (N / 256,) float32, only then
    NAME.weight.quant_map, .nested_quant_map      the codes' values, which are constants
    NAME.weight.quant_state.bitsandbytes__nf4     JSON in bytes: shape, dtype, block sizes, the mean of the scales

and in 8 bits NAME.weight (int8), NAME.SCB (a float32 a row) and NAME.weight_format. `find_packed` sees such groups by
their names; `PackedWeight` gives one weight's shape, its bytes as our linears keep them, or the floats it stands for.

Source: `Params4bit.from_prequantized` and `QuantState.as_dict` of bitsandbytes 0.50.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import bitsandbytes.functional as bnb
import torch
from torch import Tensor

from ftkit.catalog import QUANTIZERS, load
from ftkit.errors import ModelError

Read = Callable[[str], Tensor]
STATE = ".quant_state.bitsandbytes__"
PARTS_OF_4BIT = (".absmax", ".nested_absmax", ".quant_map", ".nested_quant_map")
SCALES_OF_8BIT, FORMAT_OF_8BIT = "SCB", "weight_format"


def find_packed(names: Iterable[str], read: Read) -> dict[str, PackedWeight]:
    """The quantized weights of a checkpoint by name; empty for nearly every one."""
    known, packed = set(names), {}
    for name in known:
        weight, _, kind = name.partition(STATE)
        if kind:
            parts = tuple(weight + part for part in PARTS_OF_4BIT if weight + part in known)
            packed[weight] = PackedWeight(weight, kind, (name, *parts), read)
        elif name.endswith(f".{SCALES_OF_8BIT}"):
            module = name.removesuffix(SCALES_OF_8BIT)
            parts = (name, *{module + FORMAT_OF_8BIT} & known)
            packed[f"{module}weight"] = PackedWeight(f"{module}weight", "int8", parts, read)
    return packed


@dataclass(frozen=True)
class PackedWeight:
    """One weight and what else of the checkpoint belongs to it.

    Args:
        kind: its name in the catalog of quantizers.
        parts: names of the tensors beside the weight itself.
        read: reads a tensor of the checkpoint as it is stored.
    """

    name: str
    kind: str
    parts: tuple[str, ...]
    read: Read

    @cached_property
    def state(self) -> Mapping[str, Any]:
        """What the checkpoint says of a 4-bit weight.

        Raises:
            ModelError: block sizes or codes that our linears do not have.
        """
        state: dict[str, Any] = json.loads(self.read(self.name + STATE + self.kind).numpy().tobytes())
        sizes = state["blocksize"], state.get("nested_blocksize", 256)
        if self.kind not in ("nf4", "fp4") or sizes != (64, 256):
            raise ModelError(
                f"4-bit weights are read as nf4 or fp4 in blocks of 64 and 256, got {self.kind} in {sizes[0]} and "
                f"{sizes[1]}",
                where=self.name,
                help="use the unquantized checkpoint with load_in_4bit: true",
            )
        self.check_map("quant_map", bnb.get_4bit_type(self.kind, device="cpu"))
        self.check_map("nested_quant_map", bnb.create_dynamic_map())
        return state

    def check_map(self, part: str, wanted: Tensor) -> None:
        """Refuse other code values than bitsandbytes' own, which decoding takes."""
        name = f"{self.name}.{part}"
        if name in self.parts and not torch.allclose(self.read(name).float(), wanted, rtol=0, atol=1e-6):
            raise ModelError(
                "the checkpoint's code values are not those of bitsandbytes",
                where=name,
                help="use the unquantized checkpoint with load_in_4bit: true",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """(out_features, in_features)."""
        return tuple(self.read(self.name).shape if self.kind == "int8" else self.state["shape"])

    @property
    def options(self) -> dict[str, bool]:
        """What a linear of this kind is built with."""
        return {} if self.kind == "int8" else {"double_quantization": "nested_offset" in self.state}

    def stored(self) -> dict[str, Tensor]:
        """The bytes, by the names of our linears' parameters.

        Raises:
            ModelError: see `state`; 8-bit weights in an order of rows for one kind of GPU.
        """
        # A view, never a cast: in a float container some codes spell NaN.
        weight = self.read(self.name).contiguous().view(-1).view(torch.uint8)
        if self.kind == "int8":
            if self.parts[1:] and int(self.read(self.parts[1])):
                raise ModelError("8-bit weights must be stored row by row", where=self.parts[1])
            return {"weight": weight, "scales": self.read(self.parts[0]).float().view(torch.uint8)}
        absmax = self.read(f"{self.name}.absmax")
        if "nested_offset" not in self.state:
            return {"weight": weight, "absmax": absmax.float().view(torch.uint8)}
        mean = torch.tensor([self.state["nested_offset"]], dtype=torch.float32)
        scales = torch.cat([self.read(f"{self.name}.nested_absmax").float(), mean])
        return {"weight": weight, "absmax": absmax, "scales": scales.view(torch.uint8)}

    def floats(self) -> Tensor:
        """The weight that the bytes stand for, in the dtype it once had (float16 for 8 bits)."""
        linear = load(QUANTIZERS[self.kind])(*reversed(self.shape), **self.options)
        dtype = torch.float16 if self.kind == "int8" else getattr(torch, self.state["dtype"])
        stored = self.stored()
        values: Tensor = linear.decode([stored[name] for name in linear.stored_names], dtype)
        return values
