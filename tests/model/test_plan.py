from __future__ import annotations

import time

import pytest
import torch
from model_zoo import ARCHITECTURES, Saved, plan_of, reference
from transformers import LlamaConfig

from ftkit.errors import ModelError
from ftkit.model.build import build_net
from ftkit.model.plain import find_blocks, plain_net


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_plan_names_every_parameter_once(saved: Saved, name: str) -> None:
    plan, net = plan_of(saved(name)), reference(saved(name))
    shapes = {parameter.name: parameter.shape for parameter in plan.parameters()}
    assert {n: s for n, s in shapes.items() if n in dict(net.named_parameters())} == {
        n: tuple(p.shape) for n, p in net.named_parameters()
    }
    assert plan.num_parameters == sum(p.numel() for p in net.parameters())
    assert len(plan.blocks) == 2
    assert plan.blocks[0].kind.endswith(("Layer", "Block"))


def test_quantized_are_the_linears_of_blocks(saved: Saved) -> None:
    plan = plan_of(saved("qwen2"), adapter="qlora", load_in_4bit=True)
    quantized = {p.name for p in plan.parameters() if p.quantized}
    assert quantized == {p.name for block in plan.blocks for p in block.parameters if p.name.endswith("_proj.weight")}
    assert {p.name for p in plan.parameters() if p.adapted} == {
        p.name for block in plan.blocks for p in block.parameters if "_proj." in p.name
    }


def test_share_of_experts_left_in_floats_is_named(saved: Saved) -> None:
    plan = plan_of(saved("mixtral"), adapter="qlora", load_in_4bit=True)
    assert plan.num_unquantized_experts == 2 * 4 * 3 * 32 * 48  # layers, experts, matrices of an expert
    assert plan_of(saved("mixtral")).num_unquantized_experts == 0
    assert all(name.endswith(("q_proj", "k_proj", "v_proj", "o_proj")) for name in plan.adapted)


def test_plans_are_values(saved: Saved) -> None:
    with pytest.raises(AttributeError):
        plan_of(saved("llama")).source = "x"  # type: ignore[misc]


def test_building_does_not_change_the_plan(saved: Saved) -> None:
    plan = plan_of(saved("mixtral"), adapter="qlora", load_in_4bit=True, lora_modules_to_save=("lm_head",))
    before = (plan.config.to_dict(), plan.adapter.to_dict())
    first, second = (build_net(plan, dtype=torch.bfloat16) for _ in range(2))
    assert (plan.config.to_dict(), plan.adapter.to_dict()) == before
    assert [n for n, _ in first.named_parameters()] == [n for n, _ in second.named_parameters()]


def test_full_fine_tuning_of_a_quantized_model_is_refused(saved: Saved) -> None:
    with pytest.raises(ModelError, match="a quantized model cannot be fully fine-tuned"):
        plan_of(saved("llama"), load_in_4bit=True)


def test_a_70b_net_is_built_in_seconds_without_memory() -> None:
    started = time.monotonic()
    net = plain_net(
        LlamaConfig(
            vocab_size=32000,
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=80,
            num_attention_heads=64,
            num_key_value_heads=8,
        ),
        dtype=torch.bfloat16,
    )
    assert all(p.is_meta for p in net.parameters())
    assert not any(b.is_meta for b in net.buffers())
    assert len(find_blocks(net)) == 80
    assert time.monotonic() - started < 20
