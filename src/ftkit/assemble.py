"""The parts of a run, each built from the sections of the recipe that concern it: data, model, loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from ftkit.hardware import Substitution, refuse
from ftkit.inputs import Inputs
from ftkit.model.build import build_net
from ftkit.model.checkpoint_files import fingerprint
from ftkit.model.checkpointing import checkpoint_blocks, checkpointing_of
from ftkit.model.load import load_net
from ftkit.model.plan import ModelPlan, frozen_tables
from ftkit.model.qat import rounding_by_step
from ftkit.objective.eaft import EntropyWeights
from ftkit.objective.generate import ends_of_answer
from ftkit.optim.build import build_optimizer
from ftkit.optim.groups import group_builder
from ftkit.optim.schedule import build_schedule
from ftkit.parallel.backend import Backend, World
from ftkit.precision import Precision
from ftkit.recipe import Recipe
from ftkit.save.checkpoint import Checkpoints
from ftkit.save.export import export
from ftkit.save.identity import identity
from ftkit.train.batches import PlannedBatches, evaluation_source
from ftkit.train.flops import flops_per_token, peak_flops
from ftkit.train.loop import Trainer
from ftkit.train.options import loop_options


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the model side gives a run: plan, net with weights, the module to call, its optimizer and schedule."""

    plan: ModelPlan
    net: PreTrainedModel
    module: nn.Module
    optimizer: Optimizer
    schedule: Callable[[int], float]
    flops_per_token: float


def load_model(
    recipe: Recipe,
    inputs: Inputs,
    plan: ModelPlan,
    backend: Backend,
    numbers: Precision,
    *,
    on_block: Callable[[], None] = lambda: None,
) -> Loaded:
    """Build the net on meta, fill it block by block through the backend, and make its optimizer.

    `on_block` is called for each block that is placed.

    Optimizer and schedule are chosen first: what is wrong with their keys is said before any weight is read.
    """
    device, training = backend.world.device, recipe.training
    make_optimizer = build_optimizer(recipe.optimization, device)
    schedule = build_schedule(recipe.optimization, inputs.steps.num_steps)
    net = build_net(plan, dtype=numbers.weights, trained=numbers.trained, unfrozen=training.unfrozen_parameters)
    flops = flops_per_token(net)
    checkpoint_blocks(net, **checkpointing_of(training))

    def place_block(block: nn.Module, fill: Callable[[nn.Module], None]) -> None:
        backend.place_block(block, fill)
        on_block()

    fill_root = load_net(net, plan, place_block, device=device, dtype=numbers.weights, seed=training.seed)
    groups = group_builder(recipe.optimization, recipe.adapter)
    module, optimizer = backend.finish(net, fill_root, groups, make_optimizer, training.max_grad_norm)
    return Loaded(plan, net, module, optimizer, schedule, flops)


def unquantized_experts(recipe: Recipe, plan: ModelPlan) -> tuple[Substitution, ...]:
    """What a quantized recipe does not get: experts are 3-dimensional parameters that no linear quantizer reaches."""
    if not plan.num_unquantized_experts:
        return ()
    share = plan.num_unquantized_experts / plan.num_parameters
    used = f"experts ({share:.0%} of all parameters) stay unquantized"
    stored = recipe.quantization
    keys = ("load_in_8bit", "load_in_4bit", "quant_method")
    key = next((key for key in keys if getattr(stored, key)), "peft" if plan.loftq else "base_model")
    substitution = Substitution(
        key, "loftq" if key == "peft" else "true", used, "quantized experts come in a later version"
    )
    if recipe.general.strict:
        refuse([substitution])
    return (substitution,)


def build_trainer(
    recipe: Recipe,
    inputs: Inputs,
    loaded: Loaded,
    backend: Backend,
    numbers: Precision,
    *,
    say: Callable[[str], None] = lambda note: None,
) -> Trainer:
    """Put the loop together; `say` hears what a resumed run cannot take up exactly."""
    world, output = backend.world, Path(recipe.saving.output_dir)
    data, training = recipe.data, recipe.training
    pad_id = inputs.tokenizer.pad_token_id
    pad_to = data.sequence_len * training.micro_batch_size if data.pad_to_sequence_len else None
    batches = PlannedBatches(inputs.prepared.train, inputs.steps, world, pad_to=pad_to, pad_id=pad_id)
    checkpoints = Checkpoints(
        output,
        backend,
        identity_of(recipe, inputs, loaded.plan, world),
        limit=recipe.saving.save_total_limit,
        extra=lambda folder: export_to(folder, inputs, loaded, backend),
        say=say,
    )
    evaluation = None
    if inputs.prepared.evaluation is not None:
        size = training.eval_batch_size or training.micro_batch_size
        evaluation = evaluation_source(inputs.prepared.evaluation, inputs.evaluation_packs, size, world, pad_id=pad_id)
    options = loop_options(
        training,
        recipe.evaluation,
        recipe.saving,
        batches,
        autocast=numbers.autocast,
        flops_per_token=loaded.flops_per_token,
        peak_flops=peak_of(world, numbers),
    )
    return Trainer(
        loaded.module,
        loaded.optimizer,
        backend,
        batches,
        options,
        schedule=loaded.schedule,
        evaluation=evaluation,
        checkpoints=checkpoints,
        weigh=EntropyWeights(training.eaft_alpha, training.eaft_k) if training.use_eaft else None,
        before_step=rounding_by_step(loaded.net, loaded.plan.qat),
    )


def identity_of(recipe: Recipe, inputs: Inputs, plan: ModelPlan, world: World) -> dict[str, str]:
    """What must be the same to resume: the keys that count, the documents themselves, the base's weights themselves."""
    training, train = recipe.training, inputs.prepared.train
    sections = (recipe.model, recipe.tokens, recipe.quantization, recipe.adapter)
    derived = {
        "packs_per_step": training.micro_batch_size * training.gradient_accumulation_steps * world.size,
        "num_steps": inputs.steps.num_steps,
        "training documents": f"{len(train)}, sha256 {train.digest()[:16]}",
        "weights of base_model": fingerprint(plan.source, plan.revision),
    }
    return identity((*sections, recipe.data, training, recipe.optimization), derived)


def peak_of(world: World, numbers: Precision) -> float | None:
    """Operations a second of all devices of the run; None where a device's peak is not known."""
    if world.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(world.device)
    one = peak_flops(name, half_precision=numbers.autocast is not None or numbers.weights is not torch.float32)
    return None if one is None else one * world.size


def export_to(folder: Path, inputs: Inputs, loaded: Loaded, backend: Backend) -> None:
    """Write the adapter or the model, as it is now, with its tokenizer."""
    plan = loaded.plan
    grown = frozen_tables(plan)
    ends = ends_of_answer(loaded.net, inputs.tokenizer)
    export(backend, loaded.net, folder, tokenizer=inputs.tokenizer, adapter=plan.adapter, grown=grown, ends=ends)
