from __future__ import annotations

from typing import Any

import pytest
import torch
from model_zoo import Saved, net_of, packed
from peft import LoraConfig
from peft.tuners.lora.layer import Linear as PeftLinear
from torch import Tensor, nn

from ftkit.catalog import QUANTIZERS, load
from ftkit.model.checkpointing import checkpoint_blocks
from ftkit.model.lora import FusedLoraLinear, LoraTerm, dropped, lora_linear, plain

BASES = {"linear": None, **{name: load(target) for name, target in QUANTIZERS.items()}}


class Mask(nn.Module):
    """PEFT's dropout module replaced by the mask the fused function drew."""

    def __init__(self, term: LoraTerm) -> None:
        super().__init__()
        self.term = term

    def forward(self, x: Tensor) -> Tensor:
        ones = dropped(torch.ones_like(x.reshape(-1, x.shape[-1])), self.term)
        return x * ones.view_as(x)


def layer_of(
    base: str, D: int, num_out: int, *, bias: bool, dtype: torch.dtype, r: int, **config: Any
) -> FusedLoraLinear:
    if base == "hqq":
        pytest.importorskip("hqq")
    weight, kind = torch.randn(num_out, D, dtype=dtype) / D**0.5, BASES[base]
    linear: nn.Module
    if kind is None:
        linear = nn.Linear(D, num_out, bias=bias, dtype=dtype)
        linear.weight.data = weight
    else:
        linear = kind(D, num_out, bias_dtype=dtype if bias else None)
        linear.fill(weight)
    if bias:
        linear.bias = nn.Parameter(torch.randn(num_out, dtype=dtype))
    linear.requires_grad_(False)
    layer = FusedLoraLinear(linear, "default", LoraConfig(r=r, **config), r=r, lora_alpha=2 * r)
    layer.lora_A["default"].weight.data = torch.randn(r, D) / D**0.5
    layer.lora_B["default"].weight.data = torch.randn(num_out, r) / r**0.5
    return layer


def run(layer: FusedLoraLinear, x: Tensor, *, fused: bool, dy: Tensor) -> list[Tensor]:
    """Output and gradients: x, A, B."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x) if fused else PeftLinear.forward(layer, x)
    y.backward(dy)
    return [y.detach(), x.grad, layer.lora_A["default"].weight.grad, layer.lora_B["default"].weight.grad]  # type: ignore[list-item]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("D", "num_out", "r"), [(64, 96, 1), (33, 7, 3), (96, 40, 16), (128, 64, 128)])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_equals_peft_in_float32(base: str, D: int, num_out: int, r: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = layer_of(base, D, num_out, bias=bias, dtype=torch.float32, r=r)
    x, dy = torch.randn(2, 9, D), torch.randn(2, 9, num_out)
    for mine, wanted in zip(run(layer, x, fused=True, dy=dy), run(layer, x, fused=False, dy=dy), strict=True):
        assert relative(mine, wanted) < 1e-5


@pytest.mark.parametrize("base", BASES)
def test_fused_equals_peft_within_bf16_rounding(base: str) -> None:
    torch.manual_seed(0)
    layer = layer_of(base, 96, 64, bias=False, dtype=torch.bfloat16, r=8)
    layer.lora_A.float(), layer.lora_B.float()
    x, dy = torch.randn(2, 9, 96, dtype=torch.bfloat16), torch.randn(2, 9, 64, dtype=torch.bfloat16)
    for mine, wanted in zip(run(layer, x, fused=True, dy=dy), run(layer, x, fused=False, dy=dy), strict=True):
        assert mine.dtype == wanted.dtype
        assert relative(mine.float(), wanted.float()) < 2**-7


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("D", "num_out", "r"), [(64, 96, 1), (33, 7, 3), (128, 64, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_equals_peft_with_the_same_dropout_mask(
    base: str, D: int, num_out: int, r: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layer = layer_of(base, D, num_out, bias=False, dtype=dtype, r=r, lora_dropout=0.3).train()
    x, dy = torch.randn(2, 9, D, dtype=dtype), torch.randn(2, 9, num_out, dtype=dtype)
    torch.manual_seed(3)
    mine = run(layer, x, fused=True, dy=dy)
    torch.manual_seed(3)
    layer.lora_dropout["default"] = Mask(LoraTerm(2.0, 0.3, int(torch.randint(2**62, ()).item())))
    for got, wanted in zip(mine, run(layer, x, fused=False, dy=dy), strict=True):
        assert relative(got.float(), wanted.float()) < (1e-5 if dtype == torch.float32 else 2**-6)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_equals_peft_under_autocast(base: str, dtype: torch.dtype) -> None:
    """Inputs may be float32 there: layer norms give it."""
    torch.manual_seed(0)
    layer = layer_of(base, 96, 64, bias=True, dtype=torch.bfloat16, r=8, lora_dropout=0.1).eval()
    layer.lora_A.float(), layer.lora_B.float()
    x, dy = torch.randn(2, 9, 96, dtype=dtype), torch.randn(2, 9, 64, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        both = run(layer, x, fused=True, dy=dy), run(layer, x, fused=False, dy=dy)
    for mine, wanted in zip(*both, strict=True):
        assert mine.dtype == wanted.dtype
        assert relative(mine.float(), wanted.float()) < 2**-6


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    ones = dropped(torch.ones(1000, 100), LoraTerm(1.0, 0.3, 7))
    assert abs((ones == 0).float().mean() - 0.3) < 0.01
    assert abs(ones.mean() - 1) < 0.01
    assert torch.equal(ones, dropped(torch.ones(1000, 100), LoraTerm(1.0, 0.3, 7)))


def test_dropout_is_off_in_evaluation() -> None:
    layer = layer_of("nf4", 64, 96, bias=False, dtype=torch.float32, r=4, lora_dropout=0.9).eval()
    x = torch.randn(3, 64)
    torch.testing.assert_close(layer(x), PeftLinear.forward(layer, x))


def test_gradients_are_those_of_finite_differences() -> None:
    weight = torch.randn(5, 6, dtype=torch.float64)
    x, a, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((4, 6), (2, 6), (5, 2)))
    for dropout in (0.0, 0.5):
        term = LoraTerm(0.7, dropout, 11)
        assert torch.autograd.gradcheck(
            lambda x, a, b, term=term: lora_linear(x, a, b, term, plain, (weight,)), (x, a, b)
        )


def test_only_x_and_xa_are_kept_beside_parameters() -> None:
    layer = layer_of("nf4", 64, 96, bias=False, dtype=torch.float32, r=4, lora_dropout=0.3).train()
    kept: list[Tensor] = []
    x = torch.randn(9, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(x)
    beside = [t for t in kept if not any(t is p for p in layer.parameters())]
    assert [tuple(t.shape) for t in beside] == [(9, 64), (9, 4)]
    assert beside[0] is x


def test_rslora_scales_by_the_root_of_the_rank() -> None:
    layer = layer_of("linear", 8, 8, bias=False, dtype=torch.float32, r=4, use_rslora=True)
    assert layer.scaling["default"] == 8 / 4**0.5


def test_a_quantized_weight_takes_no_adapter_in_place() -> None:
    with pytest.raises(NotImplementedError, match="ftkit merge"):
        layer_of("nf4", 64, 64, bias=False, dtype=torch.float32, r=4).merge()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_checkpointing_changes_neither_dropout_nor_gradients(saved: Saved, adapter: str, reentrant: bool) -> None:
    net = net_of(saved("llama"), adapter=adapter, load_in_4bit=adapter == "qlora", lora_dropout=0.2).train()
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    results = []
    for enabled in (False, True):
        checkpoint_blocks(net, enabled=enabled, reentrant=reentrant)
        net.zero_grad()
        torch.manual_seed(9)
        net(**packed([7, 5])).logits.logsumexp(-1).sum().backward()
        results.append({n: p.grad.clone() for n, p in net.named_parameters() if p.requires_grad})
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, msg=name)


def relative(mine: Tensor, wanted: Tensor) -> float:
    return float((mine - wanted).norm() / wanted.norm())
