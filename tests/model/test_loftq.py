"""Against PEFT's decomposition of the error that bitsandbytes makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import pytest
import torch
from model_zoo import Saved, net_of, packed, plan_of, reference
from peft.utils.loftq_utils import _low_rank_decomposition
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from ftkit.model import load
from ftkit.model.adapter import write_adapter_config
from ftkit.model.naming import adapter_files

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21


def loftq(bits: int) -> dict[str, Any]:
    return {"adapter": "lora", "peft": {"loftq_config": {"loftq_bits": bits}}}


def rounded(weight: Tensor, bits: int) -> Tensor:
    """What bitsandbytes makes of a weight, as PEFT's loftq_init asks for it."""
    if bits == 8:
        codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
        values: Tensor = bnb.int8_vectorwise_dequant(codes, scales)
        return values
    packed_weight, state = bnb.quantize_4bit(weight, quant_type="nf4", compress_statistics=False, blocksize=64)
    dequantized: Tensor = bnb.dequantize_4bit(packed_weight, state)
    return dequantized


@pytest.mark.parametrize("bits", [4, 8])
def test_a_and_b_are_pefts(saved: Saved, bits: int) -> None:
    net, plain = net_of(saved("llama"), lora_r=5, **loftq(bits)), reference(saved("llama"))
    for name in ("self_attn.k_proj", "mlp.down_proj"):
        layer = net.model.layers[1].get_submodule(name)
        weight = plain.model.layers[1].get_submodule(name).weight.detach()
        base = rounded(weight, bits)
        torch.testing.assert_close(layer.base_layer.weight_in(torch.float32), base, rtol=1e-3, atol=1e-5)
        theirs = _low_rank_decomposition(weight - layer.base_layer.weight_in(torch.float32), reduced_rank=5)
        torch.testing.assert_close(layer.lora_A.default.weight, theirs["R"], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(layer.lora_B.default.weight, theirs["L"], rtol=1e-5, atol=1e-7)
        assert layer.lora_A.default.weight.requires_grad


@torch.no_grad()
def distance(net: PreTrainedModel, folder: Path) -> float:
    """From the logits of the unquantized model."""
    row = packed([11])
    expected = reference(folder)(input_ids=row["input_ids"]).logits
    return float((net.eval()(**row).logits - expected).norm() / expected.norm())


def test_it_starts_nearer_to_the_unquantized_model_and_at_full_rank_there(saved: Saved) -> None:
    folder = saved("llama")
    plain = distance(net_of(folder, adapter="qlora", load_in_4bit=True, bnb_4bit_use_double_quant=False), folder)
    some = distance(net_of(folder, lora_r=16, lora_alpha=16, **loftq(4)), folder)
    whole = distance(net_of(folder, lora_r=32, lora_alpha=32, **loftq(4)), folder)
    assert whole < 1e-5 < some < 0.8 * plain


def test_what_no_quantizer_stores_starts_as_plain_lora(saved: Saved) -> None:
    net = net_of(saved("llama"), lora_target_modules=["q_proj", "lm_head"], **loftq(4))
    assert not net.lm_head.lora_B.default.weight.any()
    assert net.model.layers[0].self_attn.q_proj.lora_B.default.weight.any()


def test_double_quantization_is_the_recipes_choice(saved: Saved) -> None:
    single = net_of(saved("llama"), **loftq(4)).model.layers[0].mlp.up_proj.base_layer
    double = net_of(saved("llama"), load_in_4bit=True, **loftq(4)).model.layers[0].mlp.up_proj.base_layer
    assert (single.double_quantization, double.double_quantization) == (False, True)


def test_an_adapter_to_continue_keeps_its_values(saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = net_of(saved("llama"), **loftq(4))
    values = dict(first.named_parameters())
    config = plan_of(saved("llama"), **loftq(4)).adapter
    assert config is not None
    write_adapter_config(config, tmp_path)
    stored = {name: values[mine].detach() + 1 for name, mine in adapter_files(first).items()}
    save_file(stored, tmp_path / "adapter_model.safetensors")
    monkeypatch.setattr(load, "correction", None)  # decomposing for nothing takes minutes in a large model
    again = dict(net_of(saved("llama"), lora_model_dir=str(tmp_path), **loftq(4)).named_parameters())
    for name, mine in adapter_files(first).items():
        assert torch.equal(again[mine], stored[name])
