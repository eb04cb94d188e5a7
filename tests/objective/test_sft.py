from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from ftkit.data.batch import collate
from ftkit.data.store import ExampleStore, StoreWriter
from ftkit.data.values import Where
from ftkit.model.attention import NAME, register_attention
from ftkit.objective.sft import sft_loss, target_rows

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attn_implementation": NAME,
}


def llama() -> nn.Module:
    register_attention()
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def mixtral() -> nn.Module:
    register_attention()
    torch.manual_seed(0)
    router = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    return MixtralForCausalLM(MixtralConfig(num_local_experts=4, sliding_window=None, **SIZES, **router))


def store_of(*masks: str) -> ExampleStore:
    """A document a mask; `x` is a trained token."""
    writer, random = StoreWriter(), np.random.default_rng(0)
    for line, mask in enumerate(masks):
        ids = random.integers(3, 61, len(mask)).astype(np.int32)
        writer.add(ids, np.array([letter == "x" for letter in mask]), Where("rows", line))
    return writer.in_memory()


def plain_loss(net: nn.Module, store: ExampleStore) -> float:
    """Every document by itself, all logits, torch's loss."""
    total = 0.0
    for example in store:
        ids, labels = (torch.from_numpy(array.astype(np.int64)) for array in (example.input_ids, example.labels))
        logits = net(input_ids=ids[None], use_cache=False).logits[0]
        total += cross_entropy(logits[:-1].float(), labels[1:], reduction="sum").item()
    return total


def test_a_row_of_documents_has_the_sum_of_their_losses() -> None:
    store, net = store_of("--xxx", "-x", "xxxx---", "--------x"), llama()
    loss, tokens = sft_loss(net, collate(store, [0, 1, 2, 3], pad_to=None, pad_id=0))
    assert tokens == 3 + 1 + 3 + 1  # the first token of a document is never a target
    assert loss.item() == pytest.approx(plain_loss(net, store), rel=1e-5)


def test_padding_changes_nothing() -> None:
    store, net = store_of("--xxx", "-x"), llama()
    plain = sft_loss(net, collate(store, [0, 1], pad_to=None, pad_id=0))
    padded = sft_loss(net, collate(store, [0, 1], pad_to=32, pad_id=0))
    assert padded[1] == plain[1]
    assert padded[0].item() == pytest.approx(plain[0].item(), rel=1e-6)


def test_gradients_equal_those_of_all_logits() -> None:
    store = store_of("--xxx", "-xx-x")
    batch = collate(store, [0, 1], pad_to=None, pad_id=0)
    gradients = []
    for ours in (True, False):
        net = llama()
        if ours:
            loss, _ = sft_loss(net, batch)
        else:
            cu, longest = batch.cu_seqlens, batch.max_seqlen
            borders = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": longest, "max_length_k": longest}
            logits = net(batch.input_ids, position_ids=batch.position_ids, use_cache=False, **borders).logits[0]
            loss = cross_entropy(logits[:-1], batch.labels[0, 1:], reduction="sum")
        loss.backward()
        gradients.append([parameter.grad for parameter in net.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


def test_a_batch_without_targets_is_a_zero_that_reaches_every_parameter() -> None:
    net = llama()
    loss, tokens = sft_loss(net, collate(store_of("-----"), [0], pad_to=None, pad_id=0))
    assert (loss.item(), tokens) == (0.0, 0)
    loss.backward()
    for parameter in net.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_an_empty_batch_is_a_zero_too() -> None:
    loss, tokens = sft_loss(llama(), collate(store_of("-xx"), [], pad_to=None, pad_id=0))
    loss.backward()
    assert (loss.item(), tokens) == (0.0, 0)


def test_only_target_rows_reach_the_head() -> None:
    net, seen = llama(), []
    net.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    sft_loss(net, collate(store_of("--xxx", "------"), [0, 1], pad_to=None, pad_id=0))
    assert seen == [(1, 3, 61)]


def test_target_rows_are_those_before_a_target() -> None:
    assert target_rows(torch.tensor([[-100, 5, -100, 7, 8]])).tolist() == [0, 2, 3]


def test_the_router_loss_is_added_in_training_only() -> None:
    net, batch = mixtral(), collate(store_of("--xxx", "-x"), [0, 1], pad_to=None, pad_id=0)
    cu, longest = batch.cu_seqlens, batch.max_seqlen
    borders = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": longest, "max_length_k": longest}
    outputs = net(batch.input_ids, position_ids=batch.position_ids, use_cache=False, **borders)
    nll, tokens = sft_loss(net.eval(), batch)
    trained, _ = sft_loss(net.train(), batch)
    assert (trained - nll).item() == pytest.approx(0.5 * tokens * outputs.aux_loss.item(), rel=1e-4)
    trained.backward()
    assert net.model.layers[0].mlp.gate.weight.grad.any()
