"""Tiny models, tokenizers and data sets for tests that run a whole recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
EXTRA: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "gpt2": {},
    "qwen2_moe": {},
    "gpt_neox": {"num_key_value_heads": None},
    "gemma2": {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
}
TALK = [
    ("What colour is the sky?", "The sky is blue."),
    ("Who wrote Hamlet?", "Shakespeare wrote Hamlet."),
    ("Name a prime number.", "Seven is a prime number."),
    ("Say something in French.", "Bonjour tout le monde."),
]


def byte_tokenizer(folder: Path, *, chatml: bool = True) -> int:
    """Train a small byte-level BPE, with ChatML markers unless they are unwanted, into `folder`; return its length."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"] if chatml else ["<|endoftext|>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for pair in TALK for text in pair] + ["system user assistant"], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>" if chatml else "<|endoftext|>",
        pad_token="<pad>",
        unk_token="<|endoftext|>",
    )
    fast.save_pretrained(folder)
    return len(fast)


def tiny_model(
    folder: Path,
    architecture: str = "llama",
    *,
    vocab_size: int | None = None,
    chatml: bool = True,
    seed: int = 0,
    **shape: Any,
) -> Path:
    """Write a random model of `architecture` in fp32, with a byte-level tokenizer unless `vocab_size` is given."""
    folder.mkdir(parents=True, exist_ok=True)
    size = byte_tokenizer(folder, chatml=chatml) if vocab_size is None else vocab_size
    config = AutoConfig.for_model(architecture, vocab_size=size, **{**SHAPE, **EXTRA[architecture], **shape})
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def sharegpt_rows(path: Path, pairs: Sequence[tuple[str, str]] = TALK, repeat: int = 1) -> Path:
    """Write `pairs` as ShareGPT conversations of one turn, `repeat` times."""
    rows = [{"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * repeat), encoding="utf8")
    return path
