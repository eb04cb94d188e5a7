"""QLoRA of an 8B shape on one GPU: tokens/s and peak memory of ftkit beside plain PEFT + bitsandbytes, in one run.

Random weights built block by block, random tokens, every step exactly B x T real tokens; the median of the last 8 of 12
steps, device synchronized; peak is `max_memory_allocated` since the first step. Prints a table and writes JSON.

    python -m benchmarks.qlora_8b [--layers 32] [--profile] [--json out.json]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ftkit.data.batch import collate
from ftkit.data.store import StoreWriter
from ftkit.data.values import Where
from ftkit.model.build import build_net
from ftkit.model.checkpointing import checkpoint_blocks
from ftkit.model.plan import plan_model
from ftkit.model.quantized import QuantizedLinear
from ftkit.objective.sft import sft_loss
from ftkit.recipe import load_recipe

WARM, TIMED = 4, 8
RECIPE = """base_model: {folder}
datasets: [{{path: none.jsonl, type: completion}}]
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_alpha: 16
lora_target_linear: true
learning_rate: 1e-4
"""
CASES = (  # name, checkpointing, rows, tokens a row, documents a row
    ("checkpointing, 4x2048", True, 4, 2048, 1),
    ("checkpointing, 8192 packed of 8", True, 1, 8192, 8),
    ("none, 4x2048", False, 4, 2048, 1),
    ("none, 8192 packed of 8", False, 1, 8192, 8),
)


def shape(layers: int) -> LlamaConfig:
    """Llama 3 8B's shape."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )


def ours(layers: int) -> nn.Module:
    """Our net with random weights, filled block by block on the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        shape(layers).save_pretrained(folder)
        (Path(folder) / "recipe.yml").write_text(RECIPE.format(folder=folder), encoding="utf8")
        recipe = load_recipe(Path(folder) / "recipe.yml")
        plan = plan_model(recipe.model, recipe.quantization, recipe.adapter)
    net = build_net(plan, dtype=torch.bfloat16)
    for module in net.modules():
        if isinstance(module, QuantizedLinear):
            size = (module.out_features, module.in_features)
            module.fill(torch.randn(size, device="cuda", dtype=torch.bfloat16) * 0.02)
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                value = torch.randn(parameter.shape, device="cuda", dtype=parameter.dtype) * 0.02
                module.register_parameter(name, nn.Parameter(value, requires_grad=parameter.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to("cuda"))
    return net.train()


def plain(layers: int) -> nn.Module:
    """The usual stack: transformers, bitsandbytes' Linear4bit, PEFT."""
    from peft import LoraConfig, get_peft_model

    config = shape(layers)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        net = LlamaForCausalLM(config).to(torch.bfloat16)
    net.model.rotary_emb = type(net.model.rotary_emb)(config).cuda()
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name != "lm_head":
                weight = torch.randn(child.weight.shape, dtype=torch.bfloat16, device="cuda") * 0.02
                linear = bnb.nn.Linear4bit(
                    child.in_features, child.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
                )
                linear.weight = bnb.nn.Params4bit(weight.cpu(), requires_grad=False, quant_type="nf4").to("cuda")
                parent.register_module(name, linear)
    for parent in net.modules():
        for name, parameter in list(parent.named_parameters(recurse=False)):
            if parameter.is_meta:
                value = torch.randn(parameter.shape, device="cuda", dtype=torch.bfloat16) * 0.02
                parent.register_parameter(name, nn.Parameter(value, requires_grad=False))
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(net, LoraConfig(r=16, lora_alpha=16, target_modules=names, task_type="CAUSAL_LM"))
    adapted.enable_input_require_grads()
    return adapted.train()


def our_step(net: nn.Module, rows: int, tokens: int, documents: int) -> Callable[[], torch.Tensor]:
    """A function that computes the mean loss of one fresh random batch."""
    length = tokens // documents

    def step() -> torch.Tensor:
        writer = StoreWriter()
        for _ in range(rows * documents):
            ids = np.random.default_rng().integers(0, 128000, length).astype(np.int32)
            writer.add(ids, np.ones(length, dtype=bool), Where("random", 1))
        batch = collate(writer.in_memory(), range(rows * documents), pad_to=None, pad_id=0)
        with torch.autocast("cuda", torch.bfloat16):
            loss, count = sft_loss(net, batch, device=torch.device("cuda"))
        return loss / count

    return step


def plain_step(net: nn.Module, rows: int, tokens: int, documents: int) -> Callable[[], torch.Tensor]:
    """The same through the model's own loss; packed documents by position ids."""
    positions = torch.arange(tokens // documents, device="cuda").repeat(documents).expand(rows, tokens)

    def step() -> torch.Tensor:
        ids = torch.randint(0, 128000, (rows, tokens), device="cuda")
        more: dict[str, Any] = {"position_ids": positions} if documents > 1 else {}
        loss: torch.Tensor = net(input_ids=ids, labels=ids, use_cache=False, **more).loss
        return loss

    return step


def measure(net: nn.Module, step: Callable[[], torch.Tensor], num_tokens: int) -> dict[str, float]:
    """Median tokens/s and peak GiB."""
    optimizer = bnb.optim.AdamW8bit([p for p in net.parameters() if p.requires_grad], lr=1e-4)
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(WARM + TIMED):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return {
        "tokens_per_second": num_tokens / statistics.median(seconds[WARM:]),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def profile(step: Callable[[], torch.Tensor]) -> str:
    """Where device time goes in one step."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        step().backward()
        torch.cuda.synchronize()
    return recorded.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=60)


def checkpointing(net: Any, name: str, *, enabled: bool) -> None:
    """Turn activation checkpointing on or off."""
    if name == "ftkit":
        checkpoint_blocks(net, enabled=enabled)
    elif enabled:
        net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    else:
        net.gradient_checkpointing_disable()


def main() -> None:
    """Measure every case with both nets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    results = []
    for name, build, make in (("ftkit", ours, our_step), ("plain", plain, plain_step)):
        net = build(arguments.layers)
        for case, enabled, rows, tokens, documents in CASES:
            checkpointing(net, name, enabled=enabled)
            step = make(net, rows, tokens, documents)
            try:
                result: dict[str, Any] = measure(net, step, rows * tokens)
            except torch.cuda.OutOfMemoryError:
                result = {"tokens_per_second": 0.0, "peak_gib": float("nan")}
            results.append({"net": name, "case": case, **result})
            print(
                f"{name:6} {case:32} {result['tokens_per_second']:9,.0f} tokens/s {result['peak_gib']:6.1f} GiB",
                flush=True,
            )
            if arguments.profile and name == "ftkit" and documents == 8:
                print(profile(step), flush=True)
            gc.collect()
            torch.cuda.empty_cache()
        del net, step
        gc.collect()
        torch.cuda.empty_cache()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf8")


if __name__ == "__main__":
    main()
