"""Memory per rank of sharded QLoRA at the 70B shape, on one GPU: rank 0 of N ranks whose collectives do nothing.

torch's fake process group lets one process stand for rank 0 of any number: what it holds, allocates and computes is
real, what others would send is not. So memory in every phase and the speed of computing are measured; communication
is not. Prints a table and writes JSON.

    python -m benchmarks.sharded_70b [--ranks 2 8] [--offload] [--layers 80] [--tokens 2048] [--json out.json]
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.random_weights import fill_random, planned
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig

from ftkit.data.batch import collate
from ftkit.data.store import StoreWriter
from ftkit.data.values import Where
from ftkit.model.build import build_net
from ftkit.model.checkpointing import checkpoint_blocks
from ftkit.objective.sft import sft_loss
from ftkit.optim.build import build_optimizer
from ftkit.optim.groups import group_builder
from ftkit.parallel.backend import World
from ftkit.parallel.fsdp import FsdpBackend
from ftkit.parallel.fsdp_options import FsdpOptions
from ftkit.parallel.gradients import agreed, clip, total_norm

WARM, TIMED = 2, 4


def shape(layers: int, *, tiny: bool) -> LlamaConfig:
    """Llama 2 70B's shape, or a small one to try the script."""
    width, inner, heads, kv, vocabulary = (64, 128, 4, 2, 300) if tiny else (8192, 28672, 64, 8, 32000)
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )


class Peaks:
    """GiB allocated on the GPU at the end and at the highest point of each phase; nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.found = device, dict[str, float]()

    def phase(self, name: str) -> None:
        """Close the phase `name`."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            self.found[f"{name} peak"] = torch.cuda.max_memory_allocated() / 2**30
            self.found[f"{name} end"] = torch.cuda.memory_allocated() / 2**30
            torch.cuda.reset_peak_memory_stats()


class Unchecked(FsdpBackend):
    """Steps whatever comes: what nobody sent is what lay in memory, often no number."""

    def step(self) -> float:
        """As the real one, without looking whether loss and norm are finite."""
        self.shards.take_gradients()
        here = total_norm((p.grad for p in self.shards.parts.values() if p.grad is not None), self.world.device)
        norm, _ = agreed(here, self.loss)
        clip(self.shards.parts.values(), self.max_norm, norm)
        self.optimizer.step()
        self.shards.clear_gradients()
        self.loss.zero_()
        return norm


def measure(config: LlamaConfig, ranks: int, tokens: int, device: torch.device, *, offload: bool) -> dict[str, Any]:
    """One rank of `ranks`: load, train, evaluate, gather for export."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        return in_group(config, ranks, tokens, device, offload=offload)
    finally:
        dist.destroy_process_group()


def in_group(config: LlamaConfig, ranks: int, tokens: int, device: torch.device, *, offload: bool) -> dict[str, Any]:
    """The same, with the group made."""
    peaks, world = Peaks(device), World(0, ranks, 0, ranks, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    recipe, plan = planned(config, optimizer="adamw_bnb_8bit")
    net = build_net(plan, dtype=torch.bfloat16)
    checkpoint_blocks(net, enabled=True)
    backend = Unchecked(world, FsdpOptions(offload=offload))
    start = time.monotonic()
    for block in plan.blocks:
        backend.place_block(net.get_submodule(block.name), lambda module: fill_random(module, device))
    build = build_optimizer(recipe.optimization, device)
    groups = group_builder(recipe.optimization)
    module, _ = backend.finish(net, lambda net: fill_random(net, device), groups, build, 1.0)
    peaks.phase("load")
    seconds = time.monotonic() - start
    module.train()
    step_seconds = [train_step(backend, module, tokens, device) for _ in range(WARM + TIMED)][WARM:]
    peaks.phase("step")
    with torch.no_grad():
        module.eval()
        loss_of(module, tokens, device)
    peaks.phase("evaluation")
    trained = [name for name, p in net.named_parameters() if p.requires_grad]
    gathered = sum(tensor.numel() for _, tensor in backend.full_state(trained))
    peaks.phase("save")
    return {
        "ranks": ranks,
        "offload": offload,
        "load seconds": seconds,
        "tokens/s a GPU": tokens / sorted(step_seconds)[len(step_seconds) // 2],
        "exported numbers": gathered,
        **peaks.found,
    }


def train_step(backend: FsdpBackend, module: Any, tokens: int, device: torch.device) -> float:
    """Seconds of one optimizer step; the backend's own check waits for the device."""
    start = time.monotonic()
    with backend.micro_batch(last=True):
        backend.backward(loss_of(module, tokens, device), last=True)
    backend.step()
    return time.monotonic() - start


def loss_of(module: Any, tokens: int, device: torch.device) -> torch.Tensor:
    """Mean loss of one row of random tokens."""
    writer = StoreWriter()
    ids = np.random.default_rng().integers(0, 290, tokens).astype(np.int32)
    writer.add(ids, np.ones(tokens, dtype=bool), Where("random", 1))
    batch = collate(writer.in_memory(), [0], pad_to=None, pad_id=0)
    with torch.autocast(device.type, torch.bfloat16):
        loss, count = sft_loss(module, batch, device=device)
    return loss / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--offload", action="store_true", help="measure 2 ranks with parameters in host memory too")
    parser.add_argument("--tiny", action="store_true", help="a small shape, to try the script")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runs = [(ranks, False) for ranks in chosen.ranks] + ([(2, True)] if chosen.offload else [])
    results = []
    for ranks, offload in runs:
        config = shape(chosen.layers, tiny=chosen.tiny)
        results.append(measure(config, ranks, chosen.tokens, device, offload=offload))
        print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in results[-1].items()}), flush=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if chosen.json:
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        chosen.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "runs": results}, indent=1))


if __name__ == "__main__":
    main()
