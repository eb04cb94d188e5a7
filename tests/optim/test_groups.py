from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

from ftkit.optim.groups import build_groups, group_builder
from ftkit.recipe.section.optimization import OptimizationSection

SECTION = OptimizationSection(learning_rate=3e-4, weight_decay=0.1)


def tiny(*, tied: bool = False) -> nn.Module:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    with torch.device("meta"):
        return LlamaForCausalLM(
            LlamaConfig(vocab_size=40, num_hidden_layers=2, tie_word_embeddings=tied, attention_bias=True, **sizes)
        )


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
