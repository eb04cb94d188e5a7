"""Faults TOK-* and PAK-* of faults.jsonl that lie on the model's side; the others: tests/data/test_faults.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_zoo import Saved, net_of, plan_of
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftkit.data.batch import collate
from ftkit.data.store import ExampleStore, StoreWriter
from ftkit.data.values import Where
from ftkit.model.build import build_net
from ftkit.model.load import load_net
from ftkit.model.plan import TokenPlan, plan_model
from ftkit.objective.sft import run
from ftkit.parallel.backend import World
from ftkit.parallel.single import SingleBackend
from ftkit.recipe.section.adapter import AdapterSection
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.quantization import QuantizationSection
from ftkit.save.export import export
from ftkit.summary import untrained_rows
from tiny import tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21

CPU = World(0, 1, 0, 1, torch.device("cpu"))


def vocabulary(folder: Path, tokenizer_length: int, multiple: int) -> int:
    """Rows of the embedding that a run would have."""
    sections = ModelSection(base_model=str(folder)), QuantizationSection(), AdapterSection()
    plan = plan_model(*sections, tokenizer_length=tokenizer_length, vocabulary_multiple=multiple)
    net = build_net(plan, dtype=torch.float32)
    assert net.get_input_embeddings().weight.shape[0] == net.config.vocab_size
    return int(net.config.vocab_size)


def test_tok_10_the_vocabulary_grows_only_when_needed(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "base", vocab_size=512)
    assert [vocabulary(folder, 319, multiple) for multiple in (1, 32)] == [512, 512]
    assert [vocabulary(folder, 513, multiple) for multiple in (1, 32)] == [513, 544]
    assert [vocabulary(folder, 512, multiple) for multiple in (1, 32)] == [512, 512]
    assert vocabulary(folder, 544, 32) == 544


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("llama", ["embed_tokens", "lm_head"]),
        ("gpt2", ["wte"]),
        ("llama-tied", ["embed_tokens"]),
        ("gpt-neox", ["embed_in", "lm_head"]),
    ],
)
def test_tok_11_new_rows_are_trained_by_themselves(saved: Saved, name: str, ends: list[str]) -> None:
    """That they change, alone, and are in the adapter's file: tests/model/test_trained_rows.py."""
    folder, targets = saved(name), {"lora_target_linear": True}
    plan = plan_of(folder, tokenizer_length=100, adapter="lora", **targets)
    assert plan.adapter is not None
    assert plan.adapter.trainable_token_indices == {end: [97, 98, 99] for end in ends}
    assert untrained_rows(plan) == ()
    whole = plan_of(folder, tokenizer_length=100, adapter="lora", lora_modules_to_save=tuple(ends), **targets)
    assert whole.adapter is not None
    assert whole.adapter.trainable_token_indices is None
    assert untrained_rows(whole) == ()


def test_tok_11_a_token_that_is_there_needs_nothing(saved: Saved) -> None:
    plan = plan_of(saved("llama"), tokenizer_length=50, adapter="lora", lora_target_linear=True)
    assert plan.adapter is not None
    assert plan.adapter.trainable_token_indices is None
    assert untrained_rows(plan) == ()
    assert untrained_rows(plan_of(saved("llama"), tokenizer_length=100)) == ()  # everything is trained


def test_tok_11_new_rows_that_are_not_trained_are_said_by_name(saved: Saved) -> None:
    """An adapter on one end of a tie: rows of the other would change both."""
    keys = {"adapter": "lora", "lora_target_modules": ("q_proj", "lm_head")}
    assert untrained_rows(plan_of(saved("llama-tied"), tokenizer_length=100, **keys)) == (
        "3 new rows of model.embed_tokens stay at their start values: "
        "set lora_modules_to_save: [embed_tokens] to train them",
    )
    spare = plan_of(saved("llama-tied"), tokens=TokenPlan(50, {50: (), 51: ()}), **keys)
    assert untrained_rows(spare) == (
        "the rows of 2 new tokens of model.embed_tokens stay at their start values: "
        "set lora_modules_to_save: [embed_tokens] to train them",
    )


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.1)


@torch.no_grad()
def logits(net: nn.Module, ids: Tensor) -> Tensor:
    values: Tensor = net(input_ids=ids, use_cache=False).logits
    return values


@pytest.mark.parametrize("saved_whole", [(), ("embed_tokens",), ("lm_head",), ("embed_tokens", "lm_head")], ids=str)
def test_tok_12_a_tie_holds_through_training_saving_and_merging(saved_whole: tuple[str, ...], tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", tie_word_embeddings=True)
    adapter = AdapterSection(adapter="lora", lora_target_linear=True, lora_r=4, lora_modules_to_save=saved_whole)
    plan = plan_model(ModelSection(base_model=str(base)), QuantizationSection(), adapter)
    net, backend = build_net(plan, dtype=torch.float32), SingleBackend(CPU)
    fill = load_net(net, plan, backend.place_block, device=CPU.device, dtype=torch.float32)
    backend.finish(net, fill, lambda net: [{"params": [p for p in net.parameters() if p.requires_grad]}], sgd, 0.0)
    ids = torch.arange(5, 25)[None]
    optimizer = sgd([{"params": [p for p in net.parameters() if p.requires_grad]}])
    for _ in range(3):
        optimizer.zero_grad()
        net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
    live = logits(net.eval(), ids)
    export(backend, net, tmp_path / "out", tokenizer=AutoTokenizer.from_pretrained(base), adapter=plan.adapter)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    assert (live - logits(plain, ids)).abs().max() > 1e-3
    again = PeftModel.from_pretrained(plain, tmp_path / "out").eval()
    torch.testing.assert_close(logits(again, ids), live, rtol=1e-5, atol=1e-5)


def store_of(documents: Sequence[Sequence[int]]) -> ExampleStore:
    writer = StoreWriter()
    for line, document in enumerate(documents, start=1):
        ids = np.array(document, np.int32)
        writer.add(ids, np.ones(len(ids), np.bool_), Where("rows.jsonl", line))
    return writer.in_memory()


DOCUMENTS = [[5, 6, 7, 8, 9], [20, 21, 22], [30, 31, 32, 33, 34, 35, 36], [40, 41, 42, 43]]


def of_batch(net: nn.Module, store: ExampleStore, chosen: list[int], pad_to: int | None = None) -> list[Tensor]:
    """Each document's logits out of one micro-batch, through the objective's own call of the net."""
    batch = collate(store, chosen, pad_to=pad_to, pad_id=0)
    with torch.no_grad():
        every_row = torch.arange(batch.input_ids.shape[1])
        values = run(net, batch, every_row, CPU.device).logits[0]
    return list(values.split(batch.cu_seqlens.diff().tolist()))[: len(chosen)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2", "qwen2-window"])
def test_pak_01_a_document_in_a_pack_is_as_if_alone(name: str, training: bool, saved: Saved) -> None:
    """Attention kernel by kernel: tests/model/test_attention.py."""
    net, store = net_of(saved(name)).train(training), store_of(DOCUMENTS)
    alone = [of_batch(net, store, [index])[0] for index in range(4)]
    for pad_to in (None, 32):
        for mine, wanted in zip(of_batch(net, store, [0, 1, 2, 3], pad_to), alone, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-5)
    changed = store_of([[50, 51, 52, 53, 54], *DOCUMENTS[1:]])
    for mine, wanted in zip(of_batch(net, changed, [0, 1, 2, 3])[1:], alone[1:], strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pak_02_micro_batches_are_one_row_and_isolate_every_document(size: int, saved: Saved) -> None:
    net, store = net_of(saved("llama")).eval(), store_of(DOCUMENTS)
    packs = [[0, 1], [2], [3]][:size]
    chosen = [index for members in packs for index in members]
    batch = collate(store, chosen, pad_to=16 * size, pad_id=0)
    assert batch.input_ids.shape == (1, 16 * size)
    for mine, index in zip(of_batch(net, store, chosen, 16 * size), chosen, strict=True):
        torch.testing.assert_close(mine, of_batch(net, store, [index])[0], rtol=0, atol=1e-5)
