from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

from ftkit.errors import RecipeError
from ftkit.optim.groups import build_groups, group_builder
from ftkit.recipe.section.adapter import AdapterSection
from ftkit.recipe.section.optimization import OptimizationSection

SECTION = OptimizationSection(learning_rate=3e-4, weight_decay=0.1)


SIZES = LlamaConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    attention_bias=True,
    tie_word_embeddings=False,
)


def tiny(*, tied: bool = False) -> nn.Module:
    config = LlamaConfig.from_dict({**SIZES.to_dict(), "tie_word_embeddings": tied})
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def named(net: nn.Module, parameters: list[nn.Parameter]) -> list[str]:
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    return [names[id(parameter)] for parameter in parameters]


def test_the_same_parameters_decay_as_under_transformers() -> None:
    net = tiny()
    decayed = [name for g in build_groups(net, SECTION) if g["weight_decay"] for name in named(net, g["params"])]
    assert sorted(decayed) == sorted(Trainer.get_decay_parameter_names(None, net))


def test_every_trainable_parameter_is_in_one_group_once_and_no_frozen_one() -> None:
    net = tiny(tied=True)
    net.get_submodule("model.layers.0").requires_grad_(False)
    grouped = [name for group in build_groups(net, SECTION) for name in named(net, group["params"])]
    assert sorted(grouped) == sorted(name for name, p in net.named_parameters() if p.requires_grad)


def test_embeddings_and_head_are_no_matrices() -> None:
    for net in (tiny(), tiny(tied=True)):
        matrices = [name for g in build_groups(net, SECTION) if g["matrices"] for name in named(net, g["params"])]
        assert matrices
        assert all("proj" in name for name in matrices)


def test_groups_have_the_base_rate_and_come_in_the_nets_order() -> None:
    net = tiny()
    groups = group_builder(SECTION)(net)
    assert {group["lr"] for group in groups} == {3e-4}
    order = {name: place for place, (name, _) in enumerate(net.named_parameters())}
    for group in groups:
        places = [order[name] for name in named(net, group["params"])]
        assert places == sorted(places)


def test_no_weight_decay_and_one_rate_make_few_groups() -> None:
    groups = build_groups(tiny(), OptimizationSection())
    assert [(group["weight_decay"], group["matrices"]) for group in groups] == [(0.0, False), (0.0, True)]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT 0.21 asks for it
def test_the_rates_of_loraplus_are_pefts() -> None:
    targets = ["q_proj", "down_proj", "embed_tokens"]
    config = LoraConfig(r=2, target_modules=targets, modules_to_save=["lm_head"], use_dora=False)
    wrapped = get_peft_model(LlamaForCausalLM(SIZES), config)
    reference = create_loraplus_optimizer(
        wrapped, torch.optim.AdamW, lr=3e-4, loraplus_lr_ratio=16, loraplus_weight_decay=0.1, loraplus_lr_embedding=5e-6
    )
    section = AdapterSection(adapter="lora", lora_r=2, loraplus_lr_ratio=16, loraplus_lr_embedding=5e-6)
    theirs = {id(p): (g["lr"], g["weight_decay"]) for g in reference.param_groups for p in g["params"]}
    groups = build_groups(wrapped, SECTION, section)
    ours = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert {key: rate for key, (rate, _) in ours.items()} == {key: rate for key, (rate, _) in theirs.items()}
    assert {rate for rate, _ in ours.values()} == {3e-4, 3e-4 * 16, 5e-6}
    assert groups[0]["lr"] == 3e-4  # the first group's rate is the one that is logged


def test_a_net_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(RecipeError) as caught:
        build_groups(tiny().requires_grad_(False), SECTION)
    assert str(caught.value) == (
        "base_model: no parameter of the model is trained\n"
        "help: name modules that the model has, or leave `adapter` out to train all weights"
    )
