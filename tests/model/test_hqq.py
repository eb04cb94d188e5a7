from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from model_zoo import Saved, net_of, packed
from safetensors.torch import load_file
from torch import Tensor

from ftkit.errors import ModelError
from ftkit.model.hqq import HqqLinear

Quantizer = pytest.importorskip("hqq.core.quantize").Quantizer
BITS = [2, 3, 4, 8]


def quantized(weight: Tensor, bits: int, group_size: int = 64) -> HqqLinear:
    layer = HqqLinear(weight.shape[1], weight.shape[0], bits=bits, group_size=group_size)
    layer.fill(weight)
    return layer


def by_hqq(weight: Tensor, bits: int, group_size: int) -> tuple[Tensor, dict[str, Any]]:
    return Quantizer.quantize(weight, nbits=bits, group_size=group_size, axis=1, device="cpu")


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_and_values_are_those_of_hqq(bits: int, group_size: int, dtype: torch.dtype) -> None:
    weight = torch.randn(48, 128, dtype=dtype)
    layer = quantized(weight, bits, group_size)
    codes, meta = by_hqq(weight, bits, group_size)
    assert torch.equal(layer.weight, codes.reshape(-1).view(torch.uint8))
    constants = {key: meta[key].half().float() for key in ("scale", "zero")}  # as hqq's own linear keeps them
    wanted = Quantizer.dequantize(codes, {**meta, **constants, "compute_dtype": torch.float32})
    assert torch.equal(layer.weight_in(torch.float32), wanted)
    empty = HqqLinear(128, 48, bits=bits, group_size=group_size)
    for name, value in layer.named_parameters():
        assert value.shape == empty.get_parameter(name).shape
        assert value.dtype == torch.uint8
        assert not value.requires_grad
        assert not value.is_inference()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(33, 7), (65, 3), (96, 40)])
def test_odd_shapes_are_filled_up_and_cut_off(bits: int, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape[1], shape[0])
    error = (quantized(weight, bits).weight_in(torch.float32) - weight).abs().max()
    assert error < (weight.max() - weight.min()) / (2**bits - 1)


def test_more_bits_are_nearer() -> None:
    weight = torch.randn(64, 128)
    errors = [float((quantized(weight, bits).weight_in(torch.float32) - weight).norm()) for bits in BITS]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02 * weight.norm()


def test_bytes_off_a_border_are_read_right() -> None:
    for bits in BITS:
        layer = quantized(torch.randn(64, 64), bits)
        shifted = [torch.cat([torch.zeros(1, dtype=torch.uint8), part])[1:] for part in layer.stored()]
        assert torch.equal(layer.decode(shifted, torch.float32), layer.weight_in(torch.float32))


def test_a_recipe_with_quant_method_hqq_gets_it(saved: Saved) -> None:
    net = net_of(saved("llama"), adapter="lora", quant_method="hqq", hqq_nbits=8, hqq_group_size=32)
    weights = load_file(saved("llama") / "model.safetensors")
    layers = {n.removesuffix(".base_layer"): m for n, m in net.named_modules() if isinstance(m, HqqLinear)}
    assert len(layers) == 14
    for name, layer in layers.items():
        codes, _ = by_hqq(weights[f"{name}.weight"], 8, 32)
        assert torch.equal(layer.weight, codes.reshape(-1).view(torch.uint8))
    with torch.no_grad():
        mine, wanted = (n.eval()(**packed([7, 5])).logits for n in (net, net_of(saved("llama"))))
    assert 0 < (mine - wanted).norm() / wanted.norm() < 0.02


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hqq.core.quantize", None)
    with pytest.raises(ModelError) as caught:
        HqqLinear(64, 64)
    assert str(caught.value) == (
        'quant_method: hqq needs the package hqq, which is not installed\nhelp: pip install "ftkit[hqq]"'
    )
