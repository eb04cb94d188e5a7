"""What every backend must do alike: small runs with all that can differ between backends, and how one is carried out.

`run_case` goes the way of a real run (plan, net on meta, block by block through the backend, the loop's own step), on
one rank of any world. The global batch of a case is the same at any number of ranks.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ftkit.data.order import StepPlan
from ftkit.data.packing import pack, pack_singly
from ftkit.data.store import ExampleStore, StoreWriter
from ftkit.data.values import Where
from ftkit.model.build import build_net
from ftkit.model.checkpointing import checkpoint_blocks
from ftkit.model.load import load_net
from ftkit.model.plan import plan_model
from ftkit.optim.build import build_optimizer
from ftkit.optim.groups import group_builder
from ftkit.optim.schedule import build_schedule
from ftkit.parallel.backend import Backend, BackendRequest, World
from ftkit.parallel.choose import build_backend
from ftkit.recipe.section.adapter import AdapterSection
from ftkit.recipe.section.backend import BackendSection
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.optimization import OptimizationSection
from ftkit.recipe.section.quantization import QuantizationSection
from ftkit.recipe.section.training import TrainingSection
from ftkit.train.batches import PlannedBatches
from ftkit.train.step import Stepper

STEPS, ROWS_A_STEP, VOCABULARY, CAPACITY = 20, 8, 300, 48
LORA = {"adapter": "lora", "lora_target_linear": True, "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0}
QLORA = {**LORA, "adapter": "qlora"}


@dataclass(frozen=True)
class Case:
    """One small run.

    Args:
        adapter, quantization: keys of these sections.
        accumulation: micro-batches a rank and step at two ranks.
        silent: every second document has no target token, so that some ranks have none in a step.
        model: which of the folders that the tests make.
    """

    name: str
    adapter: dict[str, Any] = field(default_factory=dict)
    quantization: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "adamw_torch"
    learning_rate: float = 1e-3
    accumulation: int = 1
    packed: bool = False
    silent: bool = False
    recompute: bool = False
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    model: str = "llama"
    rtol: float = 1e-5
    steps: int = STEPS


CASES = {
    case.name: case
    for case in (
        Case("full"),
        Case("full-sgd", optimizer="sgd", learning_rate=0.1, accumulation=4, silent=True),
        Case("full-tied-packed", model="tied", packed=True, accumulation=4, recompute=True),
        Case("full-8bit", optimizer="adamw_bnb_8bit", rtol=1e-3),
        Case("lora", LORA, accumulation=4),
        Case("lora-sgd-silent", LORA, optimizer="sgd", learning_rate=0.5, silent=True, recompute=True),
        Case("lora-int8", LORA, {"load_in_8bit": True}),
        Case("qlora", QLORA, {"load_in_4bit": True}),
        Case("qlora-sgd", QLORA, {"load_in_4bit": True}, "sgd", 0.5, accumulation=4, recompute=True),
        Case("qlora-packed", QLORA, {"load_in_4bit": True}, packed=True, silent=True, accumulation=4),
        Case("qlora-8bit", QLORA, {"load_in_4bit": True}, "paged_adamw_8bit", rtol=1e-3),
        Case(
            "qlora-bf16",
            QLORA,
            {"load_in_4bit": True},
            dtype=torch.bfloat16,
            autocast=torch.bfloat16,
            packed=True,
            recompute=True,
            rtol=2e-2,
        ),
    )
}


@dataclass
class Result:
    """What a case leaves, on rank 0.

    Args:
        exported: whole trainable tensors after the last step.
        packed_bytes: hash of each byte parameter (or of this rank's part) before and after.
        local_bytes: bytes of each byte parameter that lie on this rank, and of the whole.
    """

    losses: list[float]
    norms: list[float]
    exported: dict[str, Tensor]
    bytes_unchanged: bool
    local_bytes: dict[str, tuple[int, int]]
    facts: dict[str, Any] = field(default_factory=dict)


def documents(num: int = 64, *, seed: int = 0, silent: bool = False) -> ExampleStore:
    """Random documents of uneven length, each with its own number of target tokens."""
    writer, random = StoreWriter(), np.random.default_rng(seed)
    for line in range(num):
        length = int(random.integers(6, 30))
        targets = np.arange(length) >= random.integers(1, length - 1)
        if silent and line % 2:
            targets[:] = False
        writer.add(random.integers(3, VOCABULARY, length).astype(np.int32), targets, Where("rows", line + 1))
    return writer.in_memory()


def planned(case: Case, world: World) -> PlannedBatches:
    """The batches of this rank; the global batch is the same at any world size up to ROWS_A_STEP."""
    store = documents(silent=case.silent)
    rows = pack(store.lengths, CAPACITY) if case.packed else pack_singly(len(store))
    micro = ROWS_A_STEP // (2 * case.accumulation)
    accumulation = ROWS_A_STEP // (micro * world.size)
    plan = StepPlan(rows, micro, accumulation, world.size, max_steps=case.steps)
    return PlannedBatches(store, plan, world, pad_to=None, pad_id=0)


@dataclass
class Running:
    """A case between its steps."""

    backend: Backend
    net: Any
    stepper: Stepper
    batches: PlannedBatches
    blocks: Sequence[str]

    def train(self, steps: range) -> tuple[list[float], list[float]]:
        """Mean losses over all ranks and gradient norms of these steps."""
        losses, norms = [], []
        for step in steps:
            work = self.batches.step(step)
            loss, norm = self.stepper.step(step, work)
            total = self.backend.reduce(loss, "sum").item()
            losses.append(total / work.num_target_tokens)
            norms.append(norm)
        return losses, norms


def start(case: Case, world: World, folder: Path, section: BackendSection) -> Running:
    """Build and load a case's net on this rank."""
    training = TrainingSection(
        micro_batch_size=ROWS_A_STEP // (2 * case.accumulation),
        gradient_accumulation_steps=2 * case.accumulation // world.size,
    )
    backend = build_backend(BackendRequest(section, training, "recipe.yml"), world)
    optimization = OptimizationSection(
        optimizer=case.optimizer, learning_rate=case.learning_rate, lr_scheduler="cosine", warmup_steps=2
    )
    plan = plan_model(
        ModelSection(base_model=str(folder / case.model)),
        QuantizationSection(**case.quantization),
        AdapterSection(**case.adapter),
    )
    net = build_net(plan, dtype=case.dtype)
    checkpoint_blocks(net, enabled=case.recompute)
    fill = load_net(net, plan, backend.place_block, device=world.device, dtype=case.dtype)
    build = build_optimizer(optimization, world.device)
    module, optimizer = backend.finish(net, fill, group_builder(optimization), build, 1.0)
    module.train()
    batches = planned(case, world)
    peaks = tuple(float(group["lr"]) for group in optimizer.param_groups)
    schedule = build_schedule(optimization, case.steps)
    stepper = Stepper(module, optimizer, backend, schedule, peaks, 42, case.autocast)
    return Running(backend, net, stepper, batches, [block.name for block in plan.blocks])


def run_case(case: Case, world: World, folder: Path, section: BackendSection) -> Result:
    """Run a case on this rank, from its load to its exported weights."""
    running = start(case, world, folder, section)
    before = byte_parameters(running.net)
    losses, norms = running.train(range(case.steps))
    names = [name for name, p in running.net.named_parameters() if p.requires_grad]
    exported = {name: tensor.cpu() for name, tensor in running.backend.full_state(names)}
    after = byte_parameters(running.net)
    unchanged = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    sizes = {name: (part.numel(), whole_size(running.net.get_parameter(name))) for name, part in after.items()}
    running.batches.close()
    result = Result(losses, norms, exported, unchanged, sizes)
    del running
    gc.collect()
    return result


def byte_parameters(net: Any) -> dict[str, Tensor]:
    """This rank's part of every parameter of one byte an element, copied."""
    return {
        name: local_part(p).detach().view(torch.uint8).clone()
        for name, p in net.named_parameters()
        if p.element_size() == 1
    }


def local_part(parameter: Tensor) -> Tensor:
    """What lies on this rank, whichever backend shared it out."""
    if hasattr(parameter, "ds_tensor"):
        return parameter.ds_tensor
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def whole_size(parameter: Tensor) -> int:
    """Elements of the whole."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def with_steps(case: Case, steps: int) -> Case:
    """The same case, shorter."""
    return dataclasses.replace(case, steps=steps)


def run_on_rank(world: World, case: Case, folder: Path, section: BackendSection) -> Result:
    """`run_case` as a task of a pair."""
    return run_case(case, world, folder, section)
