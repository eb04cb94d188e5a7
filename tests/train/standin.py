"""A tiny Llama, documents of random tokens and the parts of a run around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ftkit.data.order import StepPlan
from ftkit.data.store import ExampleStore, StoreWriter
from ftkit.data.values import Where
from ftkit.model.attention import NAME, register_attention
from ftkit.objective.sft import Weigh
from ftkit.optim.build import build_optimizer
from ftkit.optim.groups import group_builder
from ftkit.optim.schedule import build_schedule
from ftkit.parallel.backend import World
from ftkit.parallel.single import SingleBackend
from ftkit.recipe.section.optimization import OptimizationSection
from ftkit.train.batches import PlannedBatches, evaluation_source
from ftkit.train.events import Evaluated, Event, Logged
from ftkit.train.loop import Trainer
from ftkit.train.options import LoopOptions

VOCABULARY = 101
CPU = World(0, 1, 0, 1, torch.device("cpu"))


def tiny_llama(*, seed: int = 0, lora_dropout: float | None = None) -> LlamaForCausalLM:
    """A random Llama; with `lora_dropout` only an adapter of rank 4 is trainable."""
    register_attention()
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes, attn_implementation=NAME))
    if lora_dropout is not None:
        targets = ["q_proj", "v_proj", "down_proj"]
        inject_adapter_in_model(LoraConfig(r=4, lora_alpha=8, lora_dropout=lora_dropout, target_modules=targets), net)
    return net


def documents(num: int, *, seed: int = 0, longest: int = 20, trained: bool = True) -> ExampleStore:
    """Random documents of uneven length, each with its own number of target tokens (none unless `trained`)."""
    writer, random = StoreWriter(), np.random.default_rng(seed)
    for line in range(num):
        length = int(random.integers(4, longest))
        targets = trained & (np.arange(length) >= random.integers(1, length - 1))
        writer.add(random.integers(3, VOCABULARY, length).astype(np.int32), targets, Where("rows", line + 1))
    return writer.in_memory()


@dataclass
class Heard:
    """A listener that keeps everything."""

    events: list[Event]

    def on(self, event: Event) -> None:
        self.events.append(event)

    @property
    def logged(self) -> list[Logged]:
        return [event for event in self.events if isinstance(event, Logged)]

    @property
    def evaluated(self) -> list[Evaluated]:
        return [event for event in self.events if isinstance(event, Evaluated)]


@dataclass
class Run:
    """A run on one CPU process, ready to start."""

    net: nn.Module
    backend: SingleBackend
    trainer: Trainer
    heard: Heard


def section(**keys: Any) -> OptimizationSection:
    return OptimizationSection(**{"learning_rate": 1e-2, "lr_scheduler": "cosine", "warmup_steps": 2, **keys})


def make_run(
    net: nn.Module,
    store: ExampleStore,
    *,
    optimization: OptimizationSection | None = None,
    options: LoopOptions | None = None,
    evaluation: ExampleStore | None = None,
    checkpoints: Callable[[SingleBackend, nn.Module], Any] | None = None,
    max_norm: float = 1.0,
    weigh: Weigh | None = None,
    **plan_options: Any,
) -> Run:
    """Put a run together as run.py does, one document a pack."""
    keys = optimization or section()
    backend, heard = SingleBackend(CPU), Heard([])
    build = build_optimizer(keys, CPU.device)
    module, optimizer = backend.finish(net, lambda net: None, group_builder(keys), build, max_norm)
    plan = StepPlan([[i] for i in range(len(store))], **plan_options)
    batches = PlannedBatches(store, plan, CPU, pad_to=None, pad_id=0)
    trainer = Trainer(
        module,
        optimizer,
        backend,
        batches,
        options or LoopOptions(),
        schedule=build_schedule(keys, plan.num_steps),
        evaluation=evaluation
        and evaluation_source(evaluation, [[i] for i in range(len(evaluation))], 2, CPU, pad_id=0),
        checkpoints=checkpoints and checkpoints(backend, net),
        listeners=[heard],
        weigh=weigh,
    )
    return Run(net, backend, trainer, heard)


def weights(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters() if p.requires_grad}


def folder_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
