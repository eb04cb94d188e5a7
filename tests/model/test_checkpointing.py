from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from model_zoo import Saved, net_of, packed

from ftkit.model.checkpointing import checkpoint_blocks, checkpointing_of
from ftkit.model.plain import find_blocks
from ftkit.recipe.section.frozen import FrozenMap
from ftkit.recipe.section.training import TrainingSection


def run(saved: Saved, **keys: Any) -> tuple[list[int], dict[str, torch.Tensor]]:
    """How often each block was called in a step, and the gradients."""
    net, calls = net_of(saved("llama")).train(), Counter[str]()  # type: ignore[var-annotated]
    checkpoint_blocks(net, **checkpointing_of(TrainingSection(**keys)))
    blocks = find_blocks(net)
    for name, block in blocks.items():
        block.self_attn.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    net(**packed([7, 4])).logits.logsumexp(-1).sum().backward()
    return [calls[name] for name in blocks], {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("keys", "calls"),
    [
        ({}, {1}),
        ({"gradient_checkpointing": True}, {2}),
        ({"gradient_checkpointing": True, "reentrant_checkpointing": True}, {2}),
        ({"gradient_checkpointing": "selective"}, {1, 2}),
    ],
    ids=str,
)
def test_blocks_are_recomputed_as_asked_and_gradients_stay(saved: Saved, keys: dict[str, Any], calls: set[int]) -> None:
    wanted, (found, gradients) = run(saved)[1], run(saved, **keys)
    assert set(found) == calls
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name])


def test_keys_mean_what_they_say() -> None:
    kwargs = FrozenMap({"use_reentrant": True})
    assert checkpointing_of(TrainingSection(gradient_checkpointing=True, gradient_checkpointing_kwargs=kwargs)) == {
        "enabled": True,
        "reentrant": True,
        "every": 1,
        "offload": False,
    }
    assert checkpointing_of(TrainingSection(gradient_checkpointing=True, activation_offloading="legacy"))["offload"]
    assert checkpointing_of(TrainingSection(gradient_checkpointing="offload"))["offload"]
