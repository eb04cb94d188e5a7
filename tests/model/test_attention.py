from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from model_zoo import ARCHITECTURES, Saved, documents, net_of, packed, reference
from torch import Tensor
from transformers import PreTrainedModel

from ftkit.errors import ModelError
from ftkit.model.attention import attend, make_mask

LENGTHS = [7, 1, 12, 3, 9]


def gradients(net: PreTrainedModel, losses: Callable[[], Tensor]) -> dict[str, Tensor]:
    net.zero_grad()
    losses().backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


def loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Sum over a document's predicted tokens."""
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_equals_documents_alone(saved: Saved, name: str) -> None:
    net, row = net_of(saved(name)), packed(LENGTHS)
    alone = documents(row)
    net.eval()

    def packed_loss() -> Tensor:
        logits = net(**row).logits.split(LENGTHS, dim=1)
        return torch.stack([loss(part, ids) for part, ids in zip(logits, alone, strict=True)]).sum()

    def alone_loss() -> Tensor:
        return torch.stack([loss(net(input_ids=ids, use_cache=False).logits, ids) for ids in alone]).sum()

    torch.testing.assert_close(packed_loss(), alone_loss(), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        theirs = torch.cat([reference(saved(name))(input_ids=ids).logits for ids in alone], dim=1)
        torch.testing.assert_close(net(**row).logits, theirs, rtol=1e-5, atol=1e-5)
    mine, wanted = gradients(net, packed_loss), gradients(net, alone_loss)
    assert mine.keys() == wanted.keys()
    for key in mine:
        torch.testing.assert_close(
            mine[key], wanted[key], rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "qwen2-window", "stablelm"])
def test_a_changed_document_changes_no_other(saved: Saved, name: str) -> None:
    net, row = net_of(saved(name)).eval(), packed(LENGTHS)
    changed = {**row, "input_ids": row["input_ids"].clone()}
    changed["input_ids"][0, 8:20] = 5  # the third document
    with torch.no_grad():
        before, after = net(**row).logits, net(**changed).logits
    same = (before == after).all(-1)[0]
    assert same[:8].all()
    assert same[20:].all()
    assert not same[8:20].any()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gemma3", "qwen2-window", "mixtral"])
def test_generation_with_cache_equals_transformers(saved: Saved, name: str) -> None:
    prompt = packed([9])["input_ids"]
    wanted = reference(saved(name)).generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)
    got = net_of(saved(name)).eval().generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_generation_of_a_padded_batch_equals_transformers(saved: Saved, name: str) -> None:
    ids = torch.tensor([[0, 0, 5, 6, 7], [3, 4, 5, 6, 7]])
    options = {"attention_mask": (ids != 0).long(), "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assert torch.equal(
        net_of(saved(name)).eval().generate(ids, **options), reference(saved(name)).generate(ids, **options)
    )


def test_borders_come_from_position_ids_where_cu_seqlens_are_not_given(saved: Saved) -> None:
    net, row = net_of(saved("mistral")).eval(), packed(LENGTHS)
    without = {key: value for key, value in row.items() if not key.startswith(("cu_", "max_"))}
    with torch.no_grad():
        assert torch.equal(net(**row).logits, net(**without).logits)


def test_a_packed_row_whose_borders_do_not_arrive_is_refused() -> None:
    q = torch.zeros(1, 2, 5, 4)
    note = make_mask(q_length=5, kv_length=5, allow_is_causal_skip=False)
    with pytest.raises(ModelError, match="a packed row would leak"):
        attend(torch.nn.Module(), q, q, q, note)


def test_attention_sinks_are_refused() -> None:
    q = torch.zeros(1, 2, 5, 4)
    with pytest.raises(ModelError, match="not supported yet, it uses s_aux"):
        attend(torch.nn.Module(), q, q, q, None, s_aux=torch.zeros(2))
