"""Linears whose frozen weight is stored as bytes: what every quantizer shares.

A quantizer is a subclass of `QuantizedLinear` that says how a weight becomes named byte tensors (`encode`) and back
(`decode`). Packed values and constants alike are ordinary frozen uint8 parameters, so DDP, FSDP2 and ZeRO-3 keep and
shard them like any other parameter, and no dtype policy (which touches floats only) can change a bit of them.

Three rules make that work under sharding; each was measured before it was written down:
  - a float constant is a view of its bytes taken at the moment of use, never kept: a view that outlives the forward
    would keep the whole gathered weight alive;
  - autograd functions keep the Parameter *objects*: the backend gathers into these same objects again for backward;
  - nothing is a bf16 tensor in disguise: casts rewrite bytes that happen to spell NaN (bitsandbytes issue 1945).

Shapes: T tokens (any leading axes), D in_features, O out_features.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Stored parameters, dtype -> the weight (O, D) in pieces of consecutive rows: one piece, or several of a large weight.
Decode = Callable[[Sequence[Tensor], torch.dtype], Iterator[Tensor]]


class QuantizedLinear(nn.Module):
    """`nn.Linear` with a frozen weight in bytes; its bias, if any, stays a float parameter."""

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias_dtype: torch.dtype | None = None,
        device: torch.device | str = "meta",
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bias = None if bias_dtype is None else nn.Parameter(torch.empty(out_features, dtype=bias_dtype, device=device))
        self.register_parameter("bias", bias)

    @abstractmethod
    def encode(self, weight: Tensor) -> Mapping[str, Tensor]:
        """Return the uint8 tensors, by parameter name, that stand for `weight` (O, D) on its device."""

    @abstractmethod
    def decode(self, stored: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Return the weight (O, D) that `stored`, in the order of `stored_names`, stands for."""

    @property
    @abstractmethod
    def stored_names(self) -> tuple[str, ...]:
        """Names of the byte parameters."""

    def stored(self) -> tuple[nn.Parameter, ...]:
        """The byte parameters as they are now (whole while a backend runs this module)."""
        return tuple(self.get_parameter(name) for name in self.stored_names)

    def add_bytes(self, name: str, num_bytes: int, device: torch.device | str) -> None:
        """Register a frozen parameter of `num_bytes` bytes, without values yet."""
        self.register_parameter(name, frozen_bytes(torch.empty(num_bytes, dtype=torch.uint8, device=device)))

    def fill(self, weight: Tensor) -> None:
        """Quantize `weight` (O, D) and put the real bytes in place of the empty ones."""
        self.take(self.encode(weight))

    def take(self, stored: Mapping[str, Tensor]) -> None:
        """Put real bytes, by parameter name, in place of the empty ones."""
        for name, value in stored.items():
            setattr(self, name, frozen_bytes(value))

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """The weight (O, D) this layer computes with."""
        return self.decode(bytes_of(self.stored()), dtype)

    def decode_pieces(self, stored: Sequence[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield the weight in pieces of rows, where a quantizer can decode a part by itself; else the whole."""
        yield self.decode(stored, dtype)

    def pieces(self, stored: Sequence[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
        """`decode_pieces` of parameters in whatever dtype a backend keeps bytes (see parallel/containers.py)."""
        return self.decode_pieces(bytes_of(stored), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., O)."""
        arguments = (in_product_dtype(x), self.out_features, self.pieces, *self.stored())
        y: Tensor = FrozenLinear.apply(*arguments)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """What printing the net shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def bytes_of(stored: Sequence[Tensor]) -> list[Tensor]:
    """The stored parameters as uint8."""
    return [data if data.dtype == torch.uint8 else data.view(torch.uint8) for data in stored]


def product(x: Tensor, pieces: Iterable[Tensor], num_out: int) -> Tensor:
    """Return x W^T, (T, D) -> (T, O), for a W (O, D) that comes in pieces of rows; one piece is held at a time."""
    y, start = x.new_empty(0), 0
    for piece in pieces:
        if len(piece) == num_out:
            return x @ piece.t()
        y = y if len(y) else x.new_empty(len(x), num_out)
        torch.mm(x, piece.t(), out=y[:, start : start + len(piece)])
        start += len(piece)
    return y


def product_back(dy: Tensor, pieces: Iterable[Tensor]) -> Tensor:
    """Return dy W, (T, O) -> (T, D), for a W (O, D) that comes in pieces of rows."""
    dx, start = dy.new_empty(0), 0
    for piece in pieces:
        part = dy[:, start : start + len(piece)]
        dx = dx.addmm_(part, piece) if start else part @ piece
        start += len(piece)
    return dx


def frozen_bytes(value: Tensor) -> nn.Parameter:
    """`value` (uint8) as a parameter that takes no gradient."""
    assert value.dtype == torch.uint8
    return nn.Parameter(value, requires_grad=False)


def in_product_dtype(x: Tensor) -> Tensor:
    """Cast `x` as autocast would for a product, so that an autograd function sees one dtype in both directions."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def floats_of(data: Tensor) -> Tensor:
    """View a uint8 vector as float32; copies only where a backend placed the bytes off a 4-byte border."""
    if data.storage_offset() % 4:
        data = data.clone()
    return data.view(torch.float32)


class FrozenLinear(torch.autograd.Function):
    """y = x W^T for a stored W that takes no gradient: nothing but the stored parameters is kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, num_out: int, decode: Decode, *stored: Tensor) -> Tensor:
        """(..., D) -> (..., O)."""
        ctx.save_for_backward(*stored)
        ctx.decode = decode
        y = product(x.reshape(-1, x.shape[-1]), decode(stored, x.dtype), num_out)
        return y.view(*x.shape[:-1], num_out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient of x."""
        (dy,) = gradients
        stored, dx = ctx.saved_tensors, None
        if ctx.needs_input_grad[0]:
            dx = product_back(dy.reshape(-1, dy.shape[-1]), ctx.decode(stored, dy.dtype))
            dx = dx.view(*dy.shape[:-1], dx.shape[-1])
        return dx, None, None, *(None for _ in stored)
