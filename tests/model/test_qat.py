"""Against torchao's own prepare on the model that transformers loads, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_zoo import SIZES, Saved, net_of, packed
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from ftkit import optional
from ftkit.errors import ModelError
from ftkit.model.attention import NAME, register_attention
from ftkit.model.qat import Float4Rounding, nvfp4, rounding_by_step, switch
from ftkit.recipe.section.quantization import QatSection

ao = pytest.importorskip("torchao.quantization")
PerGroup, PerRow = ao.PerGroup, ao.PerRow
TORCHAO: dict[str, tuple[dict[str, Any], Any]] = {
    "int4": ({"group_size": 32}, lambda: ao.Int4WeightOnlyConfig(group_size=32)),
    "int8": ({}, lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerGroup(32))),
    "int8-int4": (
        {"activation_dtype": "int8", "group_size": 64},
        lambda: ao.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(64)),
    ),
    "int8-int8": (
        {"activation_dtype": "int8"},
        lambda: ao.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=PerGroup(32)),
    ),
    "fp8-fp8": (
        {"activation_dtype": "float8_e4m3fn"},
        lambda: ao.Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()),
    ),
    "fp8-int4": ({"activation_dtype": "float8"}, lambda: ao.Float8DynamicActivationInt4WeightConfig()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 (it has biases), wide enough for groups of 128."""
    torch.manual_seed(0)
    sizes = {**SIZES, "hidden_size": 128, "intermediate_size": 256}
    net = AutoModelForCausalLM.from_config(Qwen2Config(**sizes), dtype=torch.float32)
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    path = tmp_path_factory.mktemp("qat")
    net.save_pretrained(path)
    return path


def theirs_of(folder: Path) -> PreTrainedModel:
    """The same model, loaded by transformers, with the same attention: one bit more or less could round otherwise."""
    register_attention()
    net: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=NAME)
    return net


def result(net: nn.Module, autocast: bool = False) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Logits of a packed row, and the gradients of a sum over them."""
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits: Tensor = net(**packed([7, 12, 3])).logits
    (logits.float() * torch.linspace(-1, 1, logits.numel()).view(logits.shape)).sum().backward()
    return logits.detach(), {name: p.grad for name, p in net.named_parameters()}


def same(mine: tuple[Tensor, dict[str, Tensor | None]], theirs: tuple[Tensor, dict[str, Tensor | None]]) -> None:
    assert torch.equal(mine[0], theirs[0])
    assert mine[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        assert gradient is not None
        assert torch.equal(mine[1][name], gradient), name


@pytest.mark.parametrize("name", TORCHAO)
def test_integers_and_8_bit_floats_compute_what_torchao_prepares(folder: Path, name: str) -> None:
    from torchao.quantization.qat import QATConfig

    keys, config = TORCHAO[name]
    mine = net_of(folder, qat={"weight_dtype": name.split("-")[-1], **keys})
    theirs = theirs_of(folder)
    plain = result(theirs)[0]
    theirs.zero_grad()
    ao.quantize_(theirs, QATConfig(config(), step="prepare"))
    expected = result(theirs)
    same(result(mine), expected)
    assert (plain - expected[0]).abs().mean() > 1e-3  # it does round
    assert mine.state_dict().keys() == AutoModelForCausalLM.from_pretrained(folder).state_dict().keys()


def test_mxfp4_computes_what_torchao_prepares_and_trains_biases_too(folder: Path) -> None:
    from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
    from torchao.quantization.qat import QATConfig
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    fp4 = torch.float4_e2m1fn_x2
    kernel = {"block_size": 32, "kernel_preference": KernelPreference.EMULATED}
    config = MXDynamicActivationMXWeightConfig(activation_dtype=fp4, weight_dtype=fp4, **kernel)
    theirs = theirs_of(folder)
    ao.quantize_(theirs, QATConfig(config, step="prepare"))
    logits, gradients = result(theirs)
    mine_logits, mine = result(net_of(folder, qat={"weight_dtype": "mxfp4", "activation_dtype": "mxfp4"}))
    torch.testing.assert_close(mine_logits, logits, rtol=1e-5, atol=1e-5)
    for name, gradient in gradients.items():
        assert mine[name] is not None, name
        if gradient is None:
            assert "proj.bias" in name  # torchao 0.18 leaves them without
        else:
            torch.testing.assert_close(mine[name], gradient, rtol=1e-4, atol=1e-4)


def naive_nvfp4(rows: Tensor) -> Tensor:
    """The format by its definition: sixteen values share an 8-bit scale, all share a float32 scale."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    outer = rows.abs().max() / (448 * 6)
    blocks = rows.view(-1, 16)
    scales = (blocks.abs().amax(1, keepdim=True) / 6 / outer).to(torch.float8_e4m3fn).float() * outer
    nearest = (blocks.abs().div(scales)[..., None] - values).abs().argmin(-1)
    return (blocks.sign() * values[nearest] * scales).view(rows.shape)


def test_nvfp4_rounds_as_the_format_is_defined() -> None:
    rows = torch.randn(6, 64, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(nvfp4(rows), naive_nvfp4(rows), rtol=1e-5, atol=1e-6)
    assert torch.equal(nvfp4(torch.zeros(2, 32)), torch.zeros(2, 32))


def test_a_rounded_linear_has_the_gradients_of_a_linear_at_the_rounded_values(folder: Path) -> None:
    net = net_of(folder, qat={"weight_dtype": "nvfp4", "activation_dtype": "nvfp4"})
    linear, x = net.model.layers[0].self_attn.q_proj, torch.randn(2, 5, 128, requires_grad=True)
    dy = torch.randn(2, 5, 128)
    (linear(x) * dy).sum().backward()
    rounded = [value.detach().clone().requires_grad_() for value in (nvfp4(x.view(-1, 128)), nvfp4(linear.weight))]
    (nn.functional.linear(rounded[0], rounded[1], linear.bias.detach()) * dy.view(-1, 128)).sum().backward()
    torch.testing.assert_close(x.grad.view(-1, 128), rounded[0].grad)
    torch.testing.assert_close(linear.weight.grad, rounded[1].grad)
    torch.testing.assert_close(linear.bias.grad, dy.sum((0, 1)))


@pytest.mark.parametrize("formats", [("int8", "int4"), ("fp8", "fp8"), (None, "nvfp4"), ("mxfp4", "mxfp4")])
def test_every_parameter_is_trained_under_autocast(folder: Path, formats: tuple[str | None, str]) -> None:
    net = net_of(folder, qat={"activation_dtype": formats[0], "weight_dtype": formats[1]})
    logits, gradients = result(net, autocast=True)
    assert logits.dtype == torch.bfloat16
    for name, gradient in gradients.items():
        assert gradient is not None, name
        assert bool(gradient.isfinite().all()), name


def test_the_embedding_rounds_if_asked_and_stays_tied(saved: Saved) -> None:
    from torchao.quantization.qat import QATConfig

    keys = {"weight_dtype": "int4", "group_size": 16}
    theirs = theirs_of(saved("llama-tied"))
    ao.quantize_(theirs, QATConfig(ao.Int4WeightOnlyConfig(group_size=16), step="prepare"))
    table = ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16))
    ao.quantize_(theirs, QATConfig(table, step="prepare"), lambda module, name: isinstance(module, nn.Embedding))
    mine = net_of(saved("llama-tied"), qat={**keys, "quantize_embedding": True})
    assert mine.lm_head.weight is mine.model.embed_tokens.weight
    same(result(mine), result(theirs))
    plain = net_of(saved("llama-tied"), qat=keys)
    assert torch.equal(plain.model.embed_tokens(torch.arange(9)), plain.model.embed_tokens.weight[:9])


@pytest.mark.parametrize("formats", [("int8", "int4"), ("nvfp4", "nvfp4")])
def test_rounding_sets_in_after_the_steps_asked_for(folder: Path, formats: tuple[str, str]) -> None:
    keys = {"activation_dtype": formats[0], "weight_dtype": formats[1]}
    rounded, plain = result(net_of(folder, qat=keys))[0], result(theirs_of(folder))[0]
    late = {**keys, "fake_quant_after_n_steps": 3}
    net = net_of(folder, qat=late)
    assert torch.equal(result(net)[0], plain)
    tell = rounding_by_step(net, QatSection(**late))
    assert tell is not None
    for done, expected in ((0, plain), (2, plain), (3, rounded), (7, rounded), (1, plain)):
        tell(done)
        assert torch.equal(result(net)[0], expected)
    assert rounding_by_step(net, QatSection(**keys)) is None
    assert rounding_by_step(net, None) is None


def test_switching_reaches_every_rounding_module(folder: Path) -> None:
    from torchao.quantization.qat import FakeQuantizerBase

    for format in ("int4", "mxfp4"):
        net = net_of(folder, qat={"weight_dtype": format})
        switch(net, on=False)
        roundings = [module for module in net.modules() if isinstance(module, FakeQuantizerBase | Float4Rounding)]
        assert len(roundings) == 2 * 7 + 1
        assert not any(module.enabled for module in roundings)


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("llama", {"weight_dtype": "mxfp4"}, "down_proj: its rows of 48 weights are not whole groups of 32"),
        ("gpt2", {"weight_dtype": "fp8", "activation_dtype": "fp8"}, "c_fc: a Conv1D is no nn.Linear"),
        ("mixtral", {"weight_dtype": "int4", "group_size": 16}, "gate_up_proj: experts are no linears"),
        (
            "gemma3",
            {"weight_dtype": "int4", "group_size": 16, "quantize_embedding": True},
            "embed_tokens: it is a Gemma3TextScaledWordEmbedding, and would lose what that adds",
        ),
    ],
)
def test_what_cannot_be_rounded_is_refused_by_name(saved: Saved, name: str, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        net_of(saved(name), qat=keys)
    assert said in str(caught.value)
    assert caught.value.where == "qat"


def test_without_torchao_the_extra_is_named(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> Any:
        raise ModuleNotFoundError(name="torchao")

    monkeypatch.setattr(optional.importlib, "import_module", absent)
    with pytest.raises(ModelError) as caught:
        net_of(saved("llama"), qat={"weight_dtype": "int4", "group_size": 16})
    assert "qat needs the package torchao" in str(caught.value)
    assert 'pip install "ftkit[qat]"' in str(caught.value)
