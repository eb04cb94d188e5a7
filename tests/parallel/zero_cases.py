"""Short runs of tiny nets, the same under `single` and, spread over ranks, under ZeRO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_zoo import plan_of
from torch import Tensor, nn

from ftkit.data.values import IGNORED, Batch
from ftkit.model.build import build_net
from ftkit.model.checkpointing import checkpoint_blocks
from ftkit.model.load import load_net
from ftkit.model.plan import TokenPlan
from ftkit.objective.sft import sft_loss
from ftkit.optim.build import build_optimizer
from ftkit.optim.groups import group_builder
from ftkit.recipe.section.optimization import OptimizationSection

CPU = torch.device("cpu")
KINDS: Mapping[str, dict[str, Any]] = {
    "full": {},
    "lora": {"adapter": "lora"},
    "qlora": {"adapter": "qlora", "load_in_4bit": True},
    "wide-qlora": {"adapter": "qlora", "load_in_4bit": True, "lora_r": 64},
    "hqq": {"adapter": "lora", "quant_method": "hqq", "hqq_nbits": 4, "hqq_group_size": 32},
    "int8": {"adapter": "lora", "load_in_8bit": True},
    "dropout": {"adapter": "qlora", "load_in_4bit": True, "lora_dropout": 0.2},
    "new-rows": {"adapter": "lora", "tokenizer_length": 101, "tokens": TokenPlan(97, {97: (), 98: (3, 4), 99: ()})},
    "dora": {"adapter": "qlora", "load_in_4bit": True, "peft_use_dora": True},
    "embeddings": {
        "adapter": "lora",
        "lora_target_modules": ["embed_tokens", "q_proj"],
        "lora_modules_to_save": ["lm_head"],
    },
}


@dataclass(frozen=True)
class Case:
    """What is trained, and how; `documents` is how many lie in a micro-batch."""

    kind: str
    optimizer: str = "adamw_torch"
    accumulation: int = 1
    documents: int = 1
    steps: int = 20
    max_norm: float = 1.0
    checkpointing: str = ""  # or "reentrant", "plain"
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    model: str = "llama"
    zero: Mapping[str, Any] = field(default_factory=dict)  # more of `zero_optimization`
    rate: float = 1e-2


@dataclass
class Ready:
    """A backend with a net in it."""

    backend: Any
    net: Any
    module: nn.Module
    optimizer: Any


def make(case: Case, folder: Path, backend: Any, on_loaded: Callable[[], None] = lambda: None) -> Ready:
    """Load the net through the backend, as assemble.py does."""
    section = OptimizationSection(optimizer=case.optimizer, learning_rate=case.rate, weight_decay=0.1)
    plan = plan_of(folder, **KINDS[case.kind])
    net = build_net(plan, dtype=case.dtype)
    checkpoint_blocks(net, enabled=bool(case.checkpointing), reentrant=case.checkpointing == "reentrant")

    fill_root = load_net(net, plan, backend.place_block, device=CPU, dtype=case.dtype)
    build = build_optimizer(section, CPU)

    def groups(net: nn.Module) -> list[dict[str, Any]]:
        on_loaded()  # parameters are asked for when all of them are where they belong
        return group_builder(section)(net)

    module, optimizer = backend.finish(net, fill_root, groups, build, case.max_norm)
    module.train()
    return Ready(backend, net, module, optimizer)


def train(case: Case, ready: Ready, steps: range, rank: int, size: int, *, alone: bool = False) -> list[list[float]]:
    """Losses of all ranks together and gradient norms; `alone` computes every rank's micro-batches in one process."""
    losses, norms = [], []
    for step in steps:
        torch.manual_seed(100 * step + rank)
        everybody = [micro_batches(case, step, other) for other in range(size)]
        tokens = sum(batch.num_target_tokens for batches in everybody for batch in batches)
        mine = [batch for batches in everybody for batch in batches] if alone else everybody[rank]
        for group in ready.optimizer.param_groups:
            group["lr"] = case.rate * (1 - step / 40)
        total = torch.zeros((), dtype=torch.float64)
        for index, batch in enumerate(mine):
            with torch.autocast("cpu", case.autocast, enabled=case.autocast is not None):
                loss, _ = sft_loss(ready.module, batch)
            total += loss.detach()
            ready.backend.backward(loss / tokens, last=index == len(mine) - 1)
        losses.append(float(ready.backend.reduce(total, "sum")) / tokens)
        norms.append(ready.backend.step())
    return [losses, norms]


def micro_batches(case: Case, step: int, rank: int) -> list[Batch]:
    """One rank's share of a step: documents of uneven length; rank 1 has no target token in every third step."""
    random = np.random.default_rng([step, rank])
    return [batch(random, case, trained=not (rank and step % 3 == 2)) for _ in range(case.accumulation)]


def batch(random: np.random.Generator, case: Case, *, trained: bool) -> Batch:
    """Random documents end to end."""
    lengths = random.integers(4, 16, case.documents)
    ids = torch.from_numpy(random.integers(3, 97, int(lengths.sum())))[None]
    if case.kind == "new-rows":
        ids[:, ::3] = torch.from_numpy(random.integers(97, 101, ids[:, ::3].shape))
    labels = ids.clone()
    labels[torch.from_numpy(random.random(labels.shape) < (0.4 if trained else 2.0))] = IGNORED
    borders = np.concatenate([[0], np.cumsum(lengths)])
    labels[0, torch.from_numpy(borders[:-1])] = IGNORED
    return Batch(
        input_ids=ids,
        labels=labels,
        position_ids=torch.cat([torch.arange(int(n)) for n in lengths])[None],
        cu_seqlens=torch.from_numpy(borders.astype(np.int32)),
        max_seqlen=int(lengths.max()),
        num_target_tokens=int((labels != IGNORED).sum()),
    )


def whole(ready: Ready) -> dict[str, Tensor]:
    """Every tensor of the net, whole."""
    return dict(ready.backend.full_state(list(ready.net.state_dict(keep_vars=True))))
