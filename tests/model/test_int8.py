from __future__ import annotations

import bitsandbytes as bnb
import pytest
import torch
from bitsandbytes.functional import int8_vectorwise_dequant, int8_vectorwise_quant
from model_zoo import Saved, net_of, packed
from safetensors.torch import load_file
from torch import Tensor, nn

from ftkit.errors import ModelError
from ftkit.model.int8 import Int8Linear
from ftkit.model.quantized import floats_of

SHAPES = [(64, 64), (33, 7), (512, 600)]  # D, O


def quantized(weight: Tensor) -> Int8Linear:
    layer = Int8Linear(weight.shape[1], weight.shape[0])
    layer.fill(weight)
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_and_values_are_those_of_bitsandbytes(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape[1], shape[0], dtype=dtype)
    codes, scales, _ = int8_vectorwise_quant(weight.half())
    layer = quantized(weight)
    assert torch.equal(layer.weight.view(torch.int8).view_as(codes), codes)
    assert torch.equal(floats_of(layer.scales), scales)
    for name, value in layer.named_parameters():
        assert value.shape == Int8Linear(*shape).get_parameter(name).shape
        assert value.dtype == torch.uint8
        assert not value.requires_grad
    wanted = int8_vectorwise_dequant(codes, scales)
    torch.testing.assert_close(layer.weight_in(torch.float32), wanted, rtol=1e-6, atol=0)
    assert (layer.weight_in(torch.bfloat16).float() - wanted).abs().max() <= wanted.abs().max() * 2**-8


def test_bytes_are_those_of_the_linear_that_transformers_loads() -> None:
    weight = torch.randn(40, 96)
    theirs = bnb.nn.Linear8bitLt(96, 40, bias=False, has_fp16_weights=False)
    theirs.weight = bnb.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False)
    theirs = theirs.to("cpu")
    assert torch.equal(quantized(weight).weight.view(torch.int8).view(40, 96), theirs.weight.data)


def test_output_and_input_gradient_are_those_of_the_stored_weight() -> None:
    layer = quantized(torch.randn(40, 96))
    layer.bias = nn.Parameter(torch.randn(40), requires_grad=False)
    x = torch.randn(2, 5, 96)
    results = []
    for forward in (layer, lambda x: nn.functional.linear(x, layer.weight_in(torch.float32), layer.bias)):
        inputs = x.clone().requires_grad_()
        y = forward(inputs)
        y.square().sum().backward()
        results.append((y.detach(), inputs.grad))
    for mine, wanted in zip(*results, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-4)


def test_a_row_of_zeros_stays_zeros() -> None:
    weight = torch.randn(3, 64)
    weight[1] = 0
    assert not quantized(weight).weight_in(torch.float32)[1].any()


def test_a_weight_beyond_float16_is_refused() -> None:
    with pytest.raises(ModelError, match=r"8 bits hold weights up to 65504, got 70000"):
        quantized(torch.full((2, 64), 70000.0))


def test_a_recipe_with_load_in_8bit_gets_it(saved: Saved) -> None:
    net = net_of(saved("llama"), adapter="lora", load_in_8bit=True)
    weights = load_file(saved("llama") / "model.safetensors")
    layers = {n.removesuffix(".base_layer"): m for n, m in net.named_modules() if isinstance(m, Int8Linear)}
    assert len(layers) == 14
    for name, layer in layers.items():
        codes, _, _ = int8_vectorwise_quant(weights[f"{name}.weight"].half())
        assert torch.equal(layer.weight.view(torch.int8).view_as(codes), codes)
    plain = net_of(saved("llama")).eval()
    with torch.no_grad():
        mine, wanted = (n(**packed([7, 5])).logits for n in (net.eval(), plain))
    assert 0 < (mine - wanted).norm() / wanted.norm() < 0.02
