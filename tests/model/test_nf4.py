from __future__ import annotations

import bitsandbytes as bnb
import pytest
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from model_zoo import Saved, net_of
from safetensors.torch import load_file
from torch import Tensor, nn

from ftkit.model import nf4
from ftkit.model.nf4 import FP4Linear, NF4Linear
from ftkit.model.quantized import floats_of

KINDS = {"nf4": NF4Linear, "fp4": FP4Linear}
SHAPES = [(64, 64), (96, 40), (33, 7), (512, 600)]  # D, O; (33, 7) fills neither a byte nor a block


def quantized(weight: Tensor, kind: str = "nf4", double: bool = True, bias: Tensor | None = None) -> NF4Linear:
    layer = KINDS[kind](
        weight.shape[1], weight.shape[0], double_quantization=double, bias_dtype=None if bias is None else bias.dtype
    )
    layer.fill(weight)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_and_values_are_those_of_bitsandbytes(
    kind: str, double: bool, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    weight = torch.randn(shape[1], shape[0], dtype=dtype)
    packed, state = quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=double)
    empty = KINDS[kind](*shape, double_quantization=double)
    layer = quantized(weight, kind, double)
    assert torch.equal(layer.weight, packed.view(-1))
    if double:
        assert torch.equal(layer.absmax, state.absmax)
        assert torch.equal(floats_of(layer.scales), torch.cat([state.state2.absmax, state.offset.view(1)]))
    else:
        assert torch.equal(floats_of(layer.absmax), state.absmax)
    for name, value in layer.named_parameters():
        assert value.shape == empty.get_parameter(name).shape
        assert value.dtype == torch.uint8
        assert not value.requires_grad
    assert torch.equal(layer.weight_in(dtype), dequantize_4bit(packed, state))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_equal_on_borders_zeros_and_extremes(dtype: torch.dtype) -> None:
    values = bnb.functional.get_4bit_type("nf4", device="cpu")
    between = (values[1:] + values[:-1]) / 2
    hard = torch.cat(
        [values, between, between.nextafter(torch.ones(15)), between.nextafter(-torch.ones(15)), -values[:3]]
    )
    scales = torch.tensor([1.0, 0.5, 3e-39, 1e-30, 1e30, 0.0, 7.0, 1 / 3])
    weight = (hard[None] * scales[:, None]).to(dtype).repeat(64, 1)
    packed, state = quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    layer = quantized(weight)
    assert torch.equal(layer.weight, packed.view(-1))
    assert torch.equal(layer.absmax, state.absmax)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_and_input_gradient_equal_those_of_linear4bit(dtype: torch.dtype) -> None:
    weight, bias = torch.randn(40, 96, dtype=dtype), torch.randn(40, dtype=dtype)
    theirs = bnb.nn.Linear4bit(96, 40, compute_dtype=dtype, quant_type="nf4")
    theirs.weight = bnb.nn.Params4bit(weight.clone(), requires_grad=False, quant_type="nf4", compress_statistics=True)
    theirs.bias = nn.Parameter(bias.clone(), requires_grad=False)
    theirs = theirs.to("cpu")
    x = torch.randn(2, 5, 96, dtype=dtype)
    results = []
    for layer in (quantized(weight, bias=bias), theirs):
        inputs = x.clone().requires_grad_()
        y = layer(inputs)
        y.float().square().sum().backward()
        results.append((y.detach(), inputs.grad))
    for mine, wanted in zip(*results, strict=True):
        assert (mine - wanted).norm() / wanted.norm() < (1e-5 if dtype == torch.float32 else 2**-7)


def test_casting_the_net_changes_no_byte() -> None:
    layer = quantized(torch.randn(64, 64))
    before = {name: value.clone() for name, value in layer.named_parameters()}
    layer.to(torch.bfloat16).to(torch.float32)
    assert all(torch.equal(value, before[name]) for name, value in layer.named_parameters())


def test_constants_off_a_four_byte_border_are_read_right() -> None:
    layer = quantized(torch.randn(64, 64))
    wanted = layer.weight_in(torch.float32)
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), layer.scales])[1:]
    assert torch.equal(layer.decode((layer.weight, layer.absmax, shifted), torch.float32), wanted)


def test_only_parameters_are_kept_for_backward() -> None:
    layer, kept = quantized(torch.randn(64, 64)), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(torch.randn(3, 64, requires_grad=True))
    assert all(any(t is p for p in layer.parameters()) for t in kept)
    assert len(kept) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_weight_is_decoded_in_pieces_with_the_same_result(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer, x = quantized(torch.randn(300, 128)), torch.randn(2, 7, 128, dtype=dtype)
    results = []
    for whole_bytes in (nf4.WHOLE_BYTES, 0):
        monkeypatch.setattr(nf4, "WHOLE_BYTES", whole_bytes)
        monkeypatch.setattr(nf4, "PIECE_BYTES", 128 * dtype.itemsize * 64)  # 64 rows
        inputs = x.clone().requires_grad_()
        y = layer(inputs)
        y.backward(torch.ones_like(y) / 7)
        results.append((y.detach(), inputs.grad))
    pieces = list(layer.pieces(layer.stored(), dtype))
    assert [len(piece) for piece in pieces] == [64, 64, 64, 64, 44]
    assert torch.equal(torch.cat(pieces), layer.weight_in(dtype))
    for whole, cut in zip(*results, strict=True):
        assert (whole - cut).norm() / whole.norm() < (1e-6 if dtype == torch.float32 else 2**-7)


@pytest.mark.parametrize("name", ["llama", "mixtral", "phi3", "qwen2"])
def test_loading_quantizes_the_blocks_linears_and_nothing_else(saved: Saved, name: str) -> None:
    net = net_of(saved(name), adapter="qlora", load_in_4bit=True)
    weights = load_file(saved(name) / "model.safetensors")
    layers = {n: m for n, m in net.named_modules() if isinstance(m, NF4Linear)}
    assert layers
    assert all(n.startswith("model.layers.") for n in layers)
    for n, layer in layers.items():
        packed, _ = quantize_4bit(
            weights[n.removesuffix(".base_layer") + ".weight"], quant_type="nf4", compress_statistics=True
        )
        assert torch.equal(layer.weight, packed.view(-1))
    assert type(net.lm_head) is nn.Linear
