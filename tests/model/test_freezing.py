from __future__ import annotations

from typing import Any

import pytest
import torch
from model_zoo import Saved, fill, packed, plan_of
from torch import nn

from ftkit.errors import ModelError
from ftkit.model.build import build_net


def unfrozen(saved: Saved, name: str, *patterns: str) -> Any:
    plan = plan_of(saved(name))
    return fill(build_net(plan, dtype=torch.float32, unfrozen=patterns), plan)


def trained(net: Any) -> set[str]:
    return {name for name, parameter in net.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        (("^lm_head.weight$",), {"lm_head.weight"}),
        (("model.layers.1.self_attn.[qk]_proj",), {f"model.layers.1.self_attn.{n}_proj.weight" for n in "qk"}),
        ((".*_layernorm", "^model.norm.*"), None),
        (("model.layers.1.",), None),
    ],
)
def test_only_what_is_named_is_trained(saved: Saved, patterns: tuple[str, ...], wanted: set[str] | None) -> None:
    net = unfrozen(saved, "llama", *patterns)
    found = trained(net)
    if wanted is not None:
        assert found == wanted
    elif len(patterns) == 2:
        assert found == {name for name, _ in net.named_parameters() if "norm" in name}
    else:
        assert found == {name for name, _ in net.named_parameters() if name.startswith("model.layers.1.")}
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01, weight_decay=0.1)
    row = packed([11])
    nn.functional.cross_entropy(net.train()(**row).logits[0], row["input_ids"][0]).backward()
    optimizer.step()
    assert {name for name, p in net.named_parameters() if not torch.equal(p, before[name])} == found


def test_a_dot_is_a_dot() -> None:
    from ftkit.model.freezing import compiled

    blocks = compiled("transformer.blocks.[0-7].")
    assert blocks.match("transformer.blocks.7.ffn")
    assert not blocks.match("transformer.blocks.70.ffn")
    assert compiled(r"model\.layers.*mlp").match("model.layers.3.mlp.up_proj.weight")


@pytest.mark.parametrize("pattern", ["^lm_head.weight$", "^model.embed_tokens.weight$"])
def test_one_end_of_a_tie_trains_both(saved: Saved, pattern: str) -> None:
    net = unfrozen(saved, "llama-tied", pattern)
    assert trained(net) == {"model.embed_tokens.weight"}
    assert net.lm_head.weight is net.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (
            "model.layers.1.block_sparse_moe.gate",
            "unfrozen_parameters: no parameter of GPT2LMHeadModel has a name that begins so, "
            "got model.layers.1.block_sparse_moe.gate\n"
            "help: there are: lm_head.weight, transformer.h.N.attn.c_attn.bias, ",
        ),
        (
            "wte.weight[:50]",
            "unfrozen_parameters: single rows of a parameter cannot be unfrozen, got wte.weight[:50]\n",
        ),
        ("wte.weight[7]", "unfrozen_parameters: single rows of a parameter cannot be unfrozen, got wte.weight[7]\n"),
        ("h.(1", "unfrozen_parameters: not a regular expression (missing ), unterminated subpattern"),
    ],
)
def test_what_cannot_be_unfrozen_is_one_clear_error(saved: Saved, pattern: str, text: str) -> None:
    with pytest.raises(ModelError) as caught:
        unfrozen(saved, "gpt2", pattern)
    assert str(caught.value).startswith(text)
    assert caught.value.help
