"""A stack in files is the stack in memory: the same layers, one after another, in transformers' own modules."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from ftkit.errors import ModelError
from ftkit.recipe.section.slices import ScaleRule, Slice, Stacking
from ftkit.save.interleave import Stack, stack_layers, write_stack
from ftkit.save.interleave_source import split_layers
from tiny import tiny_model

RANGES = ((0, 3), (1, 4), (3, 4))
MAPPING = [0, 1, 2, 1, 2, 3, 3]
IDS = torch.arange(5, 35)[None]
LAYERS = {"gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers"}  # others: model.layers


@torch.no_grad()
def logits(net: nn.Module) -> Tensor:
    values: Tensor = net.eval()(input_ids=IDS, use_cache=False).logits
    return values


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def model(folder: Path, architecture: str = "llama", **shape: Any) -> Path:
    """A random model of four layers whose biases and norms are random too, which would hide a mix-up at 0 and 1."""
    tiny_model(folder, architecture, **{"num_hidden_layers": 4, **shape})
    net = load(folder)
    generator = torch.Generator().manual_seed(2)
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    net.save_pretrained(folder)
    return folder


def in_memory(net: Any, mapping: list[int], layers: str = "model.layers") -> Any:
    """`net` with its layers at these places, told what kind of layer stands where."""
    parent, _, name = layers.rpartition(".")
    kept = net.get_submodule(layers)
    setattr(net.get_submodule(parent), name, nn.ModuleList(copy.deepcopy(kept[index]) for index in mapping))
    net.config.num_hidden_layers = len(mapping)
    if getattr(net.config, "layer_types", None):
        net.config.layer_types = [net.config.layer_types[index] for index in mapping]
    return net


def slices(folder: Path, ranges: Any = RANGES, **more: Any) -> tuple[Slice, ...]:
    return tuple(Slice(str(folder), first, last, "spec.yml:1:1", **more) for first, last in ranges)


def write(stacking: Stacking, out: Path, shard_bytes: int = 10**9) -> Stack:
    out.mkdir()
    stack = stack_layers(stacking)
    write_stack(stack, out, shard_bytes=shard_bytes)
    return stack


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "mixtral", "gemma2", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("shard_bytes", [10**9, 200_000])
def test_four_layers_become_seven(tmp_path: Path, architecture: str, shard_bytes: int) -> None:
    folder = model(tmp_path / "base", architecture)
    write(Stacking("spec.yml", slices(folder)), tmp_path / "out", shard_bytes)
    expected = logits(in_memory(load(folder), MAPPING, LAYERS.get(architecture, "model.layers")))
    net, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(logits(net), expected)
    assert (expected - logits(load(folder))).abs().max() > 1e-3
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1 or shard_bytes > 10**6
    assert AutoConfig.from_pretrained(tmp_path / "out").num_hidden_layers == 7
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (tmp_path / "out" / "generation_config.json").is_file()


def test_the_kinds_of_layers_move_with_them(tmp_path: Path) -> None:
    folder = model(tmp_path / "base", "gemma2")
    kinds = AutoConfig.from_pretrained(folder).layer_types
    assert len(set(kinds)) == 2
    write(Stacking("spec.yml", slices(folder)), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["layer_types"] == [kinds[i] for i in MAPPING]


def test_numbers_of_layers_move_with_them(tmp_path: Path) -> None:
    shape = {"mlp_only_layers": [1], "num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    folder = model(tmp_path / "base", "qwen2_moe", shared_expert_intermediate_size=32, **shape)
    write(Stacking("spec.yml", slices(folder)), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["mlp_only_layers"] == [1, 3]
    expected = logits(in_memory(load(folder), MAPPING))
    torch.testing.assert_close(logits(load(tmp_path / "out")), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_tied_head_stays_tied(tmp_path: Path, architecture: str) -> None:
    folder = model(tmp_path / "base", architecture, tie_word_embeddings=True)
    write(Stacking("spec.yml", slices(folder)), tmp_path / "out")
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(logits(load(tmp_path / "out")), logits(in_memory(load(folder), MAPPING)))


@pytest.mark.parametrize("tied", [False, True])
def test_two_models_share_a_stack(tmp_path: Path, tied: bool) -> None:
    """What stands before the layers is the first model's, what stands behind them the last one's."""
    first = model(tmp_path / "first", tie_word_embeddings=tied)
    second = model(tmp_path / "second", tie_word_embeddings=tied, seed=1)
    write(Stacking("spec.yml", slices(first, [(0, 3)]) + slices(second, [(1, 4)])), tmp_path / "out")
    net, other = in_memory(load(first), [0, 1, 2, 1, 2, 3]), load(second)
    for number in (3, 4, 5):
        net.model.layers[number] = other.model.layers[number - 2]
    net.model.norm, net.lm_head = other.model.norm, other.lm_head
    assert torch.equal(logits(load(tmp_path / "out")), logits(net))
    assert AutoConfig.from_pretrained(tmp_path / "out").tie_word_embeddings is False


def test_a_layer_of_scale_zero_changes_nothing(tmp_path: Path) -> None:
    """Block expansion: the copy's attention and feed-forward write zeros into the residual stream."""
    folder = model(tmp_path / "base", "qwen2")
    nothing = (ScaleRule("o_proj", 0.0), ScaleRule("down_proj", 0.0), ScaleRule(None, 1.0))
    stacking = slices(folder, [(0, 2)]) + slices(folder, [(1, 2)], scale=nothing) + slices(folder, [(2, 4)])
    stack = write(Stacking("spec.yml", stacking), tmp_path / "out")
    torch.testing.assert_close(logits(load(tmp_path / "out")), logits(load(folder)), rtol=1e-6, atol=1e-6)
    zeros = {name for name, value in load_file(tmp_path / "out" / "model.safetensors").items() if not value.any()}
    assert zeros == {"model.layers.2.self_attn.o_proj.weight", "model.layers.2.mlp.down_proj.weight"}
    assert {name for name, one in stack.weights.taken.items() if one.scale != 1} == zeros


def test_the_first_rule_that_fits_scales(tmp_path: Path) -> None:
    folder = model(tmp_path / "base")
    rules = (ScaleRule("q_proj", 0.5), ScaleRule("self_attn", 2.0))
    write(Stacking("spec.yml", slices(folder, [(0, 4)], scale=rules)), tmp_path / "out")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    factors = {name: 0.5 if "q_proj" in name else 2.0 if "self_attn" in name else 1.0 for name in before}
    assert all(torch.equal(after[name], before[name] * factors[name]) for name in before)


def test_the_dtype_is_what_was_asked_for(tmp_path: Path) -> None:
    folder = model(tmp_path / "base")
    write(Stacking("spec.yml", slices(folder), dtype="bfloat16"), tmp_path / "out")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(
        after["model.layers.4.mlp.up_proj.weight"], before["model.layers.2.mlp.up_proj.weight"].bfloat16()
    )
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


def test_an_architecture_of_its_own_code_is_stacked_by_its_files(tmp_path: Path) -> None:
    folder = model(tmp_path / "base")
    file = folder / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"model_type": "ours", "auto_map": {"AutoConfig": "c.C"}})
    )
    (folder / "c.py").write_text("raise SystemExit  # never run")
    stack = write(Stacking("spec.yml", slices(folder)), tmp_path / "out")
    assert not stack.is_checked
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_hidden_layers"] == 7
    assert (tmp_path / "out" / "c.py").is_file()
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    name = "model.layers.{}.mlp.up_proj.weight"
    assert all(torch.equal(after[name.format(new)], before[name.format(old)]) for new, old in enumerate(MAPPING))
    assert len(after) == len(before) + 3 * sum(name.startswith("model.layers.0.") for name in before)


def test_ranges_outside_their_models_are_one_error(tmp_path: Path) -> None:
    folder = model(tmp_path / "base")
    with pytest.raises(ModelError) as caught:
        stack_layers(Stacking("spec.yml", slices(folder, [(0, 5), (1, 4), (2, 9)])))
    assert str(caught.value) == (
        "slices reach beyond their models\n"
        f"  spec.yml:1:1: layers 0 to 4 of {folder}, which has 4\n"
        f"  spec.yml:1:1: layers 2 to 8 of {folder}, which has 4\n"
        "help: layer_range: [first, last] counts from 0 and leaves last out"
    )


def test_models_that_do_not_fit_are_one_error(tmp_path: Path) -> None:
    first, wide = model(tmp_path / "a"), model(tmp_path / "b", intermediate_size=96, rms_norm_eps=1e-3)
    with pytest.raises(ModelError) as caught:
        stack_layers(Stacking("spec.yml", slices(first, [(0, 2)]) + slices(wide, [(2, 4)])))
    assert str(caught.value).startswith(
        f"{first}: these models do not fit on one another\n"
        f"  intermediate_size: 128 in {first}, 96 in {wide}\n"
        f"  rms_norm_eps: 1e-06 in {first}, 0.001 in {wide}\n"
    )


def test_weights_of_another_shape_than_the_configuration_are_named(tmp_path: Path) -> None:
    first, wide = model(tmp_path / "a"), model(tmp_path / "b", intermediate_size=96)
    (wide / "config.json").write_bytes((first / "config.json").read_bytes())
    with pytest.raises(ModelError, match="do not make a LlamaForCausalLM") as caught:
        stack_layers(Stacking("spec.yml", slices(first, [(0, 3)]) + slices(wide, [(3, 4)])))
    assert "misshapen: model.layers.3.mlp.up_proj.weight, got (96, 64), expected (128, 64)" in str(caught.value)
    assert str(caught.value).count("misshapen") == 3


def test_a_layer_whose_work_depends_on_its_number_is_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "base", "gpt2", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ModelError, match="depends on its number, got scale_attn_by_inverse_layer_idx True"):
        stack_layers(Stacking("spec.yml", slices(folder)))


def test_a_quantized_model_is_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "base")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ModelError, match="quantized"):
        stack_layers(Stacking("spec.yml", slices(folder)))


@pytest.mark.parametrize(
    "prefix", ["model.layers.", "transformer.h.", "h.", "gpt_neox.layers.", "language_model.model.layers."]
)
def test_layers_are_found_by_their_names(prefix: str) -> None:
    names = [f"{prefix}{layer}.experts.{expert}.w" for layer in range(3) for expert in range(5)]
    found, layers, root = split_layers([*names, "embed.weight", "vision.blocks.0.w"], 3, "it")
    assert found == prefix
    assert layers[1] == {f"experts.{expert}.w": f"{prefix}1.experts.{expert}.w" for expert in range(5)}
    assert root == ("embed.weight", "vision.blocks.0.w")


def test_layers_that_cannot_be_told_are_an_error() -> None:
    with pytest.raises(ModelError, match=r"says 2 layers, and 0 parts of the names have that many, got h.\* \(3\)"):
        split_layers([f"h.{layer}.w" for layer in range(3)], 2, "it")
    with pytest.raises(ModelError, match="says 2 layers, and 2 parts"):
        split_layers([f"{part}.{layer}.w" for layer in range(2) for part in "ab"], 2, "it")
