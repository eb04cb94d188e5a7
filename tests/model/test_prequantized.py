"""Checkpoints that transformers itself has saved from quantized models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from model_zoo import Saved, net_of, packed, plan_of
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from ftkit.errors import ModelError
from ftkit.model.checkpoint_files import open_weights
from ftkit.model.int8 import Int8Linear
from ftkit.model.nf4 import NF4Linear
from ftkit.model.quantized import QuantizedLinear
from ftkit.recipe.section.adapter import LoftqSection, PeftSection

KINDS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "nf4-single": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True},
    "nf4-in-bf16": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": torch.bfloat16},
    "int8": {"load_in_8bit": True},
}
SaveQuantized = Callable[[str], Path]

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:MatMul8bitLt:UserWarning")


def by_transformers(folder: Path, **options: Any) -> PreTrainedModel:
    more = {"quantization_config": BitsAndBytesConfig(**options)} if options else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more)


def dequantized(plain: Path, folder: Path) -> PreTrainedModel:
    """What transformers reads from `folder`, in floats: its own 4-bit products on a CPU need 64 inputs or more."""
    net = by_transformers(plain)
    for name, module in by_transformers(folder).named_modules():
        if hasattr(getattr(module, "weight", None), "quant_state"):
            net.get_submodule(name).weight.data = dequantize_4bit(module.weight.data, module.weight.quant_state)
    return net


@pytest.fixture(scope="module")
def quantized(saved: Saved, tmp_path_factory: pytest.TempPathFactory) -> SaveQuantized:
    """Name of a kind -> folder with the tiny Llama as transformers saves it in that kind."""
    folders: dict[str, Path] = {}

    def save(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind)
            by_transformers(saved("llama"), **KINDS[kind]).save_pretrained(folders[kind])
        return folders[kind]

    return save


def linears(net: torch.nn.Module) -> dict[str, QuantizedLinear]:
    return {n.removesuffix(".base_layer"): m for n, m in net.named_modules() if isinstance(m, QuantizedLinear)}


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_the_file(quantized: SaveQuantized, kind: str) -> None:
    folder = quantized(kind)
    found, stored = linears(net_of(folder, adapter="lora")), load_file(folder / "model.safetensors")
    assert len(found) == 14
    for name, linear in found.items():
        assert type(linear) is (Int8Linear if kind == "int8" else NF4Linear if "nf4" in kind else type(linear))
        assert torch.equal(linear.weight, stored[f"{name}.weight"].view(-1).view(torch.uint8))
        assert all(p.dtype == torch.uint8 and not p.requires_grad for p in linear.parameters())
    if kind == "nf4-in-bf16":
        assert stored["model.layers.0.mlp.up_proj.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["nf4", "nf4-single", "fp4", "nf4-in-bf16", "int8"])
def test_loading_equals_quantizing_the_original(saved: Saved, quantized: SaveQuantized, kind: str) -> None:
    options = KINDS[kind]
    keys = {key: options[key] for key in ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type") if key in options}
    keys["bnb_4bit_use_double_quant"] = options.get("bnb_4bit_use_double_quant", False)
    anew, taken = (net_of(f, adapter="lora", **k) for f, k in ((saved("llama"), keys), (quantized(kind), {})))
    for name, parameter in anew.named_parameters():
        if "lora_" not in name:
            assert torch.equal(taken.get_parameter(name), parameter), name


def test_logits_equal_those_of_transformers(saved: Saved, quantized: SaveQuantized) -> None:
    row = packed([11])
    with torch.no_grad():
        mine = net_of(quantized("nf4"), adapter="qlora", load_in_4bit=True).eval()(**row).logits
        theirs = dequantized(saved("llama"), quantized("nf4")).eval()(input_ids=row["input_ids"]).logits
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_linears_that_the_checkpoint_left_in_floats_stay_so(saved: Saved, tmp_path: Path) -> None:
    options = {**KINDS["nf4"], "llm_int8_skip_modules": ["lm_head", "model.layers.0.mlp"]}
    by_transformers(saved("llama"), **options).save_pretrained(tmp_path)
    found = linears(net_of(tmp_path, adapter="lora"))
    assert len(found) == 11
    assert not any(name.startswith("model.layers.0.mlp") for name in found)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_who_asks_for_floats_gets_what_the_bytes_stand_for(saved: Saved, quantized: SaveQuantized, kind: str) -> None:
    weights = open_weights(str(quantized(kind)), None)
    assert sorted(weights.names()) == sorted(load_file(saved("llama") / "model.safetensors"))
    name = "model.layers.1.mlp.down_proj.weight"
    assert weights.shape(name) == (32, 48)
    weight = by_transformers(quantized(kind)).model.layers[1].mlp.down_proj.weight
    if kind == "nf4":
        assert torch.equal(weights.read(name), dequantize_4bit(weight.data, weight.quant_state))
    else:
        wanted = weight.data.float() * weight.SCB[:, None] / 127
        torch.testing.assert_close(weights.read(name).float(), wanted, rtol=2**-10, atol=0)


CONTRADICTIONS = {
    "load_in_8bit: true": ("nf4", {"load_in_8bit": True}),
    "load_in_4bit: true": ("int8", {"load_in_4bit": True}),
    "bnb_4bit_quant_type: fp4": ("nf4", {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}),
    "bnb_4bit_use_double_quant: false": ("nf4", {"load_in_4bit": True, "bnb_4bit_use_double_quant": False}),
}


@pytest.mark.parametrize("said", CONTRADICTIONS)
def test_a_recipe_that_contradicts_the_checkpoint_is_refused(quantized: SaveQuantized, said: str) -> None:
    kind, keys = CONTRADICTIONS[said]
    words = "8 bit (int8)" if kind == "int8" else "4 bit (nf4)"
    with pytest.raises(ModelError) as caught:
        plan_of(quantized(kind), adapter="lora", **keys)
    assert str(caught.value) == (
        f"base_model: the checkpoint is already quantized to {words}, got {said}\n"
        "help: take that out, or use the unquantized checkpoint"
    )


def test_full_fine_tuning_is_refused(quantized: SaveQuantized) -> None:
    with pytest.raises(ModelError) as caught:
        plan_of(quantized("nf4"))
    assert str(caught.value) == (
        "base_model: a quantized model cannot be fully fine-tuned\n"
        "help: set adapter: lora, or use the unquantized checkpoint"
    )


def test_loftq_is_refused(quantized: SaveQuantized) -> None:
    with pytest.raises(ModelError) as caught:
        plan_of(quantized("nf4"), adapter="lora", peft=PeftSection(loftq_config=LoftqSection(loftq_bits=4)))
    assert str(caught.value) == (
        "peft.loftq_config: LoftQ needs the unquantized weights, got a checkpoint in 4 bit (nf4)\n"
        "help: take the key out, or use the unquantized checkpoint"
    )


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_other_quantized_checkpoints_are_refused_with_the_way_on(saved: Saved, tmp_path: Path, method: str) -> None:
    config = json.loads((saved("llama") / "config.json").read_text("utf8"))
    config["quantization_config"] = {"quant_method": method, "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf8")
    with pytest.raises(ModelError) as caught:
        plan_of(tmp_path, adapter="lora")
    assert str(caught.value) == (
        f"{tmp_path}: the checkpoint is already quantized, got quant_method {method}; its weights are packed for the "
        "kernels of that library, which compute no gradients here\n"
        "help: use the original checkpoint; load_in_4bit: true quantizes it while loading"
    )


def edited(folder: Path, to: Path, **changes: Any) -> Path:
    """A copy of a quantized checkpoint with other tensors."""
    save_file({**load_file(folder / "model.safetensors"), **changes}, to / "model.safetensors", {"format": "pt"})
    (to / "config.json").write_bytes((folder / "config.json").read_bytes())
    return to


def test_other_block_sizes_are_refused(quantized: SaveQuantized, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4"
    _, state = quantize_4bit(torch.randn(48, 32), blocksize=128, quant_type="nf4", compress_statistics=True)
    stated = state.as_dict(packed=True)["quant_state.bitsandbytes__nf4"]
    with pytest.raises(ModelError, match="in blocks of 64 and 256, got nf4 in 128 and 256"):
        net_of(edited(quantized("nf4"), tmp_path, **{name: stated}), adapter="lora")


def test_a_configuration_that_does_not_fit_the_bytes_is_refused(quantized: SaveQuantized, tmp_path: Path) -> None:
    folder = edited(quantized("nf4"), tmp_path)
    config = (folder / "config.json").read_text("utf8")
    (folder / "config.json").write_text(config.replace('"bnb_4bit_quant_type": "nf4"', '"bnb_4bit_quant_type": "fp4"'))
    with pytest.raises(ModelError, match=r"not stored as the configuration says, got nf4 .*, expected fp4"):
        net_of(folder, adapter="lora")
