"""LoRA over a frozen linear in one autograd function.

    y = x W^T + s * drop(x) A^T B^T

PEFT's own layer runs this as five operations that keep x twice, its dropped copy and a mask, and multiplies the LoRA
term in the adapter's float32. Here one function decodes W, adds the LoRA term into the same output, and keeps only x
(which autograd holds for the neighbours anyway) and the thin x A^T. W is decoded again in backward. The dropout mask is
drawn from a seed and drawn again in backward, so no mask is kept either.

The adapter's parameters stay float32 (PEFT's default); they are rounded to the input's dtype for the multiplication.

Shapes: T tokens (leading axes flattened), D in_features, O out_features, R rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as PeftLinear
from torch import Tensor, nn

from ftkit.model.dora import QuantizedDora
from ftkit.model.quantized import Decode, QuantizedLinear, in_product_dtype, product, product_back


@dataclass(frozen=True, slots=True)
class LoraTerm:
    """What one call of a layer adds to its frozen linear, apart from A and B.

    Args:
        scaling: alpha / r, or alpha / sqrt(r) for rsLoRA.
        dropout: probability that an input of the LoRA term is zeroed; 0 outside training.
        seed: draws the dropout mask.
    """

    scaling: float
    dropout: float = 0.0
    seed: int = 0


class FusedLoraLinear(PeftLinear):  # type: ignore[misc]
    """PEFT's LoRA layer with the fused forward; what the fused one does not cover goes PEFT's own way."""

    def _get_in_out_features(self, module: nn.Module) -> tuple[int, int]:
        return module.in_features, module.out_features  # type: ignore[return-value]

    @property
    def lora_variants(self) -> dict[tuple[str, ...], Any]:
        """What PEFT offers beside plain LoRA; over bytes only DoRA."""
        quantized = isinstance(self.get_base_layer(), QuantizedLinear)
        variants: dict[tuple[str, ...], Any] = (
            {(): None, ("use_dora",): QuantizedDora} if quantized else super().lora_variants
        )
        return variants

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Merge in place as PEFT does; refused over bytes."""
        if isinstance(self.get_base_layer(), QuantizedLinear):
            raise NotImplementedError("a quantized weight cannot take an adapter in place: use `ftkit merge`")
        super().merge(safe_merge=safe_merge, adapter_names=adapter_names)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """(..., D) -> (..., O)."""
        name = self._fused_adapter()
        if name is None or args or kwargs:
            result: Tensor = super().forward(x, *args, **kwargs)
            return result
        base = self.base_layer
        dropout = (
            self.lora_dropout[name].p if self.training and isinstance(self.lora_dropout[name], nn.Dropout) else 0.0
        )
        # The seed comes from torch's own generator: checkpointing, which restores it, draws the same mask again.
        seed = int(torch.randint(2**62, ()).item()) if dropout else 0
        term = LoraTerm(self.scaling[name], dropout, seed)
        decode, stored = (base.pieces, base.stored()) if isinstance(base, QuantizedLinear) else (plain, (base.weight,))
        y = lora_linear(x, self.lora_A[name].weight, self.lora_B[name].weight, term, decode, stored)
        return y if base.bias is None else y + base.bias.to(y.dtype)

    def _fused_adapter(self) -> str | None:
        """The one active, plain, unmerged adapter; None when there is another constellation."""
        active: list[str] = [name for name in self.active_adapters if name in self.lora_A]
        if len(active) != 1 or self.disable_adapters or self.merged or self.lora_variant or self.lora_bias[active[0]]:
            return None
        return active[0]


def lora_linear(x: Tensor, a: Tensor, b: Tensor, term: LoraTerm, decode: Decode, stored: tuple[Tensor, ...]) -> Tensor:
    """Return x W^T + scaling * drop(x) A^T B^T, (..., D) -> (..., O), for the W that `decode(stored)` gives.

    `a` is (R, D), `b` is (O, R).
    """
    y: Tensor = LoraLinear.apply(in_product_dtype(x), a, b, term, decode, *stored)  # type: ignore[no-untyped-call]
    return y


def plain(stored: Sequence[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
    """Decode an unquantized weight: the weight itself."""
    yield stored[0].to(dtype)


def dropped(x: Tensor, term: LoraTerm) -> Tensor:
    """`x` with the term's dropout applied; the same for the same seed, device and shape."""
    generator = torch.Generator(x.device).manual_seed(term.seed)
    keep = torch.empty_like(x).bernoulli_(1 - term.dropout, generator=generator)
    return keep.mul_(x).div_(1 - term.dropout)


class LoraLinear(torch.autograd.Function):
    """See the module's docstring; `stored` takes no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, term: LoraTerm, decode: Decode, *stored: Tensor) -> Tensor:
        """(..., D) -> (..., O)."""
        rows = x.reshape(-1, x.shape[-1])  # (..., D) -> (T, D)
        y = product(rows, decode(stored, x.dtype), b.shape[0])  # (T, O)
        xa = (dropped(rows, term) if term.dropout else rows) @ a.to(x.dtype).t()  # (T, R)
        y.addmm_(xa, b.to(x.dtype).t(), alpha=term.scaling)
        ctx.save_for_backward(x, xa, a, b, *stored)
        ctx.term, ctx.decode = term, decode
        return y.view(*x.shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, A and B."""
        x, xa, a, b, *stored = ctx.saved_tensors
        term, rows = ctx.term, x.reshape(-1, x.shape[-1])
        dy = gradients[0].reshape(-1, gradients[0].shape[-1])  # (T, O)
        dxa = (dy @ b.to(dy.dtype)).mul_(term.scaling)  # (T, R)
        da = (dxa.t() @ (dropped(rows, term) if term.dropout else rows)).to(a.dtype)  # (R, D)
        db = (dy.t() @ xa).mul_(term.scaling).to(b.dtype)  # (O, R)
        dx = LoraLinear.input_gradient(ctx, dy, dxa, a, stored).view(x.shape) if ctx.needs_input_grad[0] else None
        return dx, da, db, None, None, *(None for _ in stored)

    @staticmethod
    def input_gradient(ctx: Any, dy: Tensor, dxa: Tensor, a: Tensor, stored: list[Tensor]) -> Tensor:
        """dL/dx (T, D): through W, and through A where dropout let the input pass."""
        dx = product_back(dy, ctx.decode(stored, dy.dtype))
        if not ctx.term.dropout:
            return dx.addmm_(dxa, a.to(dy.dtype))
        return dx.add_(dropped(dxa @ a.to(dy.dtype), ctx.term))
