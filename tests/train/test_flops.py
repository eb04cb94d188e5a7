from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from ftkit.train.flops import flops_per_token, peak_flops

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_equals_torchs_count_of_matrix_products() -> None:
    net = LlamaForCausalLM(LlamaConfig(**SIZES))
    counter = FlopCounterMode(display=False)
    with counter:
        net(input_ids=torch.ones(1, 10, dtype=torch.int64), use_cache=False).logits.sum().backward()
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for operation, count in counts.items() if str(operation) in {"aten.mm", "aten.addmm"})
    assert flops_per_token(net) * 10 == products


def test_frozen_weights_cost_two_thirds() -> None:
    net = LlamaForCausalLM(LlamaConfig(**SIZES))
    trained = flops_per_token(net)
    net.requires_grad_(False)
    assert flops_per_token(net) == pytest.approx(trained * 2 / 3)
    inject_adapter_in_model(LoraConfig(r=4, target_modules=["q_proj"]), net)
    assert flops_per_token(net) == pytest.approx(trained * 2 / 3 + 6 * 2 * (32 * 4 + 4 * 32))


def test_only_the_chosen_experts_count() -> None:
    counts = []
    for chosen in (1, 2, 4):
        with torch.device("meta"):
            net = MixtralForCausalLM(MixtralConfig(num_local_experts=4, num_experts_per_tok=chosen, **SIZES))
        counts.append(flops_per_token(net))
    expert = 6 * 2 * 3 * 32 * 48
    assert counts[1] - counts[0] == pytest.approx(expert)
    assert counts[2] - counts[1] == pytest.approx(2 * expert)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA L40S", 362e12),
        ("Some other card", None),
    ],
)
def test_peaks_by_name(name: str, peak: float | None) -> None:
    assert peak_flops(name, half_precision=True) == peak
    assert peak_flops(name, half_precision=False) is None
