"""Tiny random models of many architectures, saved once a session, and the short way to ftkit's net of one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from ftkit.model.build import build_net
from ftkit.model.load import load_net
from ftkit.model.plan import ModelPlan, TokenPlan, plan_model
from ftkit.recipe.section.adapter import AdapterSection
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.quantization import QuantizationSection

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 4}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama-yarn": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "mistral": ("MistralConfig", WINDOW),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-window": ("Qwen2Config", {**WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        {
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "gemma2": ("Gemma2Config", {**WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3TextConfig", {**WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "phi3": ("Phi3Config", {}),
    "gpt-neox": ("GPTNeoXConfig", {"num_key_value_heads": 4}),
    "olmo": ("OlmoConfig", {}),
    "olmo2": ("Olmo2Config", {}),
    "stablelm": ("StableLmConfig", {}),
    "starcoder2": ("Starcoder2Config", WINDOW),
    "cohere": ("CohereConfig", {}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
}

Saved = Callable[[str], Path]


def tiny_config(name: str) -> PretrainedConfig:
    kind, values = ARCHITECTURES[name]
    sizes = (
        {k: SIZES[k] for k in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")}
        if name == "gpt2"
        else SIZES
    )
    return getattr(transformers, kind)(**{**sizes, **values})


def reference(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """What transformers loads from `folder`."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def plan_of(
    folder: Path | str, *, tokenizer_length: int | None = None, tokens: TokenPlan | None = None, **keys: Any
) -> ModelPlan:
    """The plan of a recipe with these keys."""
    keys = {"base_model": str(folder), **keys}
    if keys.get("adapter"):
        keys = {"lora_r": 4, "lora_alpha": 8, "lora_target_linear": not keys.get("lora_target_modules"), **keys}
    sections = [ModelSection, QuantizationSection, AdapterSection]
    names = [{n for n, f in s.model_fields.items()} | {f.alias for f in s.model_fields.values()} for s in sections]
    model, quantization, adapter = (
        s(**{k: v for k, v in keys.items() if k in n}) for s, n in zip(sections, names, strict=True)
    )
    return plan_model(model, quantization, adapter, tokenizer_length=tokenizer_length, tokens=tokens or TokenPlan())


def fill(net: PreTrainedModel, plan: ModelPlan, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Fill `net` as a backend with one process does."""

    def place(block: nn.Module, fill_block: Callable[[nn.Module], None]) -> None:
        fill_block(block)
        assert not any(p.is_meta for p in block.parameters()), "a block must be whole after its fill"

    fill_root = load_net(net, plan, place, device=torch.device("cpu"), dtype=dtype)
    fill_root(net)
    assert not any(tensor.is_meta for tensor in (*net.parameters(), *net.buffers()))
    return net


def net_of(folder: Path | str, *, dtype: torch.dtype = torch.float32, **keys: Any) -> PreTrainedModel:
    """ftkit's net of a recipe with these keys, filled."""
    plan = plan_of(folder, **keys)
    return fill(build_net(plan, dtype=dtype), plan, dtype)


def packed(lengths: list[int], seed: int = 1) -> dict[str, Any]:
    """The forward's arguments for random documents of `lengths` in one row."""
    generator = torch.Generator().manual_seed(seed)
    borders = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return {
        "input_ids": torch.randint(3, SIZES["vocab_size"], (1, sum(lengths)), generator=generator),
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "use_cache": False,
        "cu_seq_lens_q": borders,
        "cu_seq_lens_k": borders,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def documents(row: dict[str, Any]) -> list[Tensor]:
    """The documents of a packed row, (1, T) each."""
    borders = row["cu_seq_lens_q"].tolist()
    return [row["input_ids"][:, s:e] for s, e in pairwise(borders)]
