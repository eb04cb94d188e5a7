"""From a recipe to a finished run: the composition root.

It reads top to bottom: machine, tokenizer and data, model, loop, export, report. What is derived (steps, substitutions,
timings) lives in values of its own; the recipe is never written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ftkit.assemble import (
    Loaded,
    build_trainer,
    export_to,
    load_model,
    unquantized_experts,
)
from ftkit.data.accounts import write_rejected
from ftkit.errors import CheckpointError, RecipeError
from ftkit.hardware import Substitution, detect_machine, fit_to_machine
from ftkit.inputs import Inputs, load_inputs
from ftkit.model.config import read_config
from ftkit.model.embedded import resolve_base_model
from ftkit.model.hub_token import require_token
from ftkit.model.plan import ModelPlan, TokenPlan, plan_model
from ftkit.objective.generate import answer
from ftkit.parallel.backend import BackendRequest, World
from ftkit.parallel.choose import backend_name, build_backend
from ftkit.parallel.guard import Guard
from ftkit.parallel.launch import set_threads, world_from_environment
from ftkit.parallel.launcher import refuse_other_backend
from ftkit.parallel.process_group import connect, gathered, refuse_disagreement
from ftkit.parallel.watchdog import Heartbeat
from ftkit.precision import Precision, precision
from ftkit.recipe import Recipe
from ftkit.recipe.deepspeed import deepspeed_config
from ftkit.report.console import Console
from ftkit.report.metrics import MetricsFile
from ftkit.report.plot import LossPlot
from ftkit.report.preparing import PrepareProgress
from ftkit.report.run_file import write_run_file
from ftkit.save.checkpoint import find_checkpoint
from ftkit.save.output import hold
from ftkit.save.writing import writing
from ftkit.summary import end_facts, next_steps, record_of, start_facts, untrained_rows, warnings_of
from ftkit.token_audit import token_facts
from ftkit.train.events import Listener
from ftkit.train.loop import Outcome, Trainer
from ftkit.train.phases import Phases


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run leaves behind, for callers in Python.

    Args:
        output_dir: everything the run wrote lies here.
        substitutions: what the machine could not honour.
        samples: (prompt, answer before, answer after); `before` is empty in a resumed run.
    """

    output_dir: Path
    outcome: Outcome
    substitutions: tuple[Substitution, ...]
    samples: tuple[tuple[str, str, str], ...]


def run(recipe: Recipe) -> RunResult:
    """Run a recipe from its data to the files in its output_dir.

    Raises:
        FtkitError: anything a user can mend, with where and how.
    """
    world, output = world_from_environment(), Path(recipe.saving.output_dir)
    set_threads(world)
    refuse_other_backend(backend_name(recipe.backend, world))
    guard = Guard(world, recipe.backend.ddp_timeout, output)
    with guard as beat, hold(output) if world.is_main else nullcontext():
        return run_in_output(recipe, world, beat)


def run_in_output(recipe: Recipe, world: World, beat: Heartbeat) -> RunResult:
    """The run, once its output_dir is its own; `beat` hears of every piece of work that is done."""
    machine, console, watch = detect_machine(world.size), Console(quiet=not world.is_main), Phases(world.device, beat)
    effective, substitutions = fit_to_machine(recipe, machine)
    resume = checkpoint_to_resume(effective, console)
    source = resolve_base_model(effective.model.base_model, gguf_file=effective.model.gguf_file)
    require_token(wanted=bool(effective.model.hf_use_auth_token), source=source)
    read_config(effective.model)  # what is wrong with the model is said before a row is read
    backend = build_backend(request_of(effective), world)
    with watch.phase("data"):
        progress = PrepareProgress(console)
        told = beating(progress, beat)
        inputs = load_inputs(effective, source, world_size=world.size, on_progress=told)
        progress.done()
    if world.size > 1:
        connect(world, effective.backend.ddp_timeout)
        refuse_disagreement(world, {"resume_from_checkpoint": str(resume), "steps": str(inputs.steps.num_steps)})
    plan = plan_of(effective, inputs)
    substitutions += unquantized_experts(effective, plan)
    numbers = precision(effective, fast_bf16=machine.bf16)
    torch.set_float32_matmul_precision("high" if effective.training.tf32 else "highest")
    console.substitutions([(s.key, s.asked, s.used, s.reason) for s in substitutions])
    console.facts("Run", start_facts(effective, inputs, plan, world, numbers))
    for finding in effective.findings:
        if finding.severity == "warning":
            console.say(f"warning: {finding}")
    for text in (*warnings_of(inputs.prepared.report), *untrained_rows(plan)):
        console.say(f"warning: {text}")
    for text in inputs.notes:
        console.say(f"note: {text}")
    with watch.phase("load"):
        loaded = load_model(effective, inputs, plan, backend, numbers, on_block=lambda: beat("a block of weights"))
    if numbers.scales_loss:
        backend.scale.begin(lambda note: console.say(f"note: {note}"))
    console.facts("Tokens", token_facts(inputs, loaded))
    trainer = build_trainer(effective, inputs, loaded, backend, numbers, say=lambda note: console.say(f"note: {note}"))
    output = Path(effective.saving.output_dir)
    if world.is_main:
        with writing("what the run is", output):
            (output / "recipe.yml").write_text(recipe.as_yaml(), encoding="utf8")
            write_rejected(output / "rejected.jsonl", inputs.prepared.report.rejected)
    trainer.listeners, trainer.phase = listeners(output, console, world), watch.phase
    for module in {loaded.module, loaded.net}:  # a wrapper need not call the net as a module
        module.register_forward_hook(lambda *_: beat(f"a forward pass after step {trainer.state.step}"))
    with watch.phase("answers"):
        before = [] if resume else answers(effective, inputs, loaded, numbers)
    with watch.phase("train"), saying_what_is_kept(trainer), writing("what the run measures", output):
        outcome = trainer.run(resume)
    with watch.phase("answers"):
        after = answers(effective, inputs, loaded, numbers)
    with watch.phase("export"):
        export_to(output, inputs, loaded, backend)
    samples = tuple(
        (prompt, before[index] if before else "", after[index])
        for index, prompt in enumerate(effective.training.sample_prompts)
    )
    result = RunResult(output, outcome, substitutions, samples)
    spread = backend_facts(backend_name(effective.backend, world), watch)
    if world.is_main:
        with writing("what the run was", output):
            write_run_file(output / "run.json", record_of(effective, inputs, loaded, result, watch.seconds, spread))
    console.samples(samples)
    console.facts("Done", end_facts(effective, result, resumed=resume is not None))
    console.next_steps(next_steps(recipe, plan, result))
    backend.close()
    return result


def backend_facts(name: str, watch: Phases) -> dict[str, Any]:
    """Which backend ran on how many ranks, and seconds and memory of each; every rank calls it."""
    ranks = gathered({"seconds": watch.seconds, "memory_gib": watch.memory_gib})
    return {"name": name, "processes": len(ranks), "ranks": ranks}


def request_of(recipe: Recipe) -> BackendRequest:
    """What the backend is made from; the name of a DeepSpeed file becomes what the file says.

    Raises:
        RecipeError: there is no such file, or it is not JSON.
    """
    section = recipe.backend
    if isinstance(section.deepspeed, str):
        try:
            config = deepspeed_config(section.deepspeed, recipe.file)
        except (FileNotFoundError, ValueError) as problem:
            raise RecipeError(
                f"the DeepSpeed configuration cannot be read, got {section.deepspeed} "
                f"({'no such file' if isinstance(problem, FileNotFoundError) else problem})",
                where="deepspeed",
                help="put the file beside the recipe, or write its contents as a mapping under `deepspeed`",
            ) from problem
        section = section.model_copy(update={"deepspeed": config})
    return BackendRequest(section, recipe.training, recipe.file)


def beating(
    progress: Callable[[int, int | None], None], beat: Callable[[str], None]
) -> Callable[[int, int | None], None]:
    """`progress`, heard by `beat` too."""

    def told(rows: int, expected: int | None) -> None:
        beat("preparing rows")
        progress(rows, expected)

    return told


@contextmanager
def saying_what_is_kept(trainer: Trainer) -> Iterator[None]:
    """Have an interruption say where the run can go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        kept = f"resume_from_checkpoint: {trainer.newest} goes on from there"
        raise type(stop)(kept if trainer.newest else "no checkpoint was written yet") from None


def checkpoint_to_resume(recipe: Recipe, console: Console) -> Path | None:
    """The checkpoint the recipe asks to go on from, if any; folders passed over on the way are named."""
    saving = recipe.saving

    def warn(problem: CheckpointError) -> None:
        console.say(f"warning: passed over: {problem.where}: {problem.what}")

    auto = bool(saving.auto_resume_from_checkpoints)
    return find_checkpoint(Path(saving.output_dir), saving.resume_from_checkpoint, auto=auto, on_skip=warn)


def plan_of(recipe: Recipe, inputs: Inputs) -> ModelPlan:
    """The model in names and shapes, its vocabulary long enough for the tokenizer."""
    multiple = 32 if recipe.tokens.resize_token_embeddings_to_32x else 1
    return plan_model(
        recipe.model,
        recipe.quantization,
        recipe.adapter,
        tokenizer_length=len(inputs.tokenizer),
        vocabulary_multiple=multiple,
        tokens=TokenPlan(inputs.tokens.known, inputs.tokens.added, inputs.tokens.renamed),
    )


def listeners(output: Path, console: Console, world: World) -> list[Listener]:
    """Who hears of the run: the metrics file before the plot that reads it."""
    metrics = output / "metrics.jsonl"
    return [MetricsFile(metrics), console, LossPlot(metrics, output / "loss.png")] if world.is_main else []


def answers(recipe: Recipe, inputs: Inputs, loaded: Loaded, numbers: Precision) -> list[str]:
    """What the net says to the recipe's sample prompts now."""
    prompts, longest = recipe.training.sample_prompts, recipe.evaluation.eval_max_new_tokens
    if not prompts:
        return []
    return answer(loaded.net, inputs.tokenizer, prompts, max_new_tokens=longest, autocast=numbers.autocast)
