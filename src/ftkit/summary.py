"""What a run says of itself: the tables at its start and end, and the record in run.json."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ftkit.data.mask_report import of_documents
from ftkit.model.checkpoint_files import fingerprint
from ftkit.model.plan import ModelPlan, is_trained
from ftkit.parallel.backend import World
from ftkit.parallel.shapes import whole_shape
from ftkit.recipe import Recipe
from ftkit.report.run_file import RunRecord
from ftkit.token_audit import token_facts

if TYPE_CHECKING:
    from ftkit.assemble import Loaded
    from ftkit.data.accounts import PrepareReport
    from ftkit.inputs import Inputs
    from ftkit.precision import Precision
    from ftkit.run import RunResult


def start_facts(recipe: Recipe, inputs: Inputs, plan: ModelPlan, world: World, numbers: Precision) -> dict[str, str]:
    """What is about to run."""
    report, steps = inputs.prepared.report, inputs.steps
    chosen = recipe.training.unfrozen_parameters
    all_or_some = f"what matches {', '.join(chosen)}" if chosen else "all weights"
    how = all_or_some if plan.adapter is None else f"LoRA r {plan.adapter.r} on {len(plan.adapted)} linears"
    stored = f", base in {plan.quantizer.words}" if plan.quantizer else ""
    dropped = ", ".join(f"{count} {reason}" for reason, count in report.dropped.items())
    share = sum(report.trained_tokens.values()) / max(report.tokens, 1)
    weights = f"weights in {short(numbers.weights)}"
    if plan.adapter is not None and numbers.trained is not numbers.weights:
        weights += f", adapter in {short(numbers.trained)}"
    products = f", products in {short(numbers.autocast)}" if numbers.autocast else ""
    return {
        "model": f"{plan.base_model} ({plan.net_class}, {plan.num_parameters / 1e6:,.1f} million parameters)",
        "trained": how + stored + rounded(plan),
        "data": f"{report.num_train} documents to train on, {report.num_evaluation} held out; "
        f"{report.tokens:,} tokens in all, {share:.0%} of them trained" + (f"; left out: {dropped}" if dropped else ""),
        "steps": f"{steps.num_steps} of {recipe.training.micro_batch_size} x "
        f"{recipe.training.gradient_accumulation_steps} x {world.size} "
        f"{'packs' if recipe.data.sample_packing else 'documents'}, {steps.steps_per_epoch} an epoch",
        "device": f"{world.device}, {torch.get_num_threads()} threads, {numbers.name}: {weights}{products}",
        "output": recipe.saving.output_dir,
    }


def rounded(plan: ModelPlan) -> str:
    """What quantization-aware training imitates, if it is on."""
    if plan.qat is None:
        return ""
    activations, weights = plan.qat.formats
    after = plan.qat.fake_quant_after_n_steps
    formats = f"{weights} weights" + (f" and {activations} activations" if activations else "")
    return f", rounded to {formats}" + (f" after {after} steps" if after else "")


def warnings_of(report: PrepareReport) -> list[str]:
    """What a person should know of the prepared data before it is trained on."""
    sets = report.train.sets + (report.evaluation.sets if report.evaluation else ())
    found = []
    for account in sets:
        found += [
            f"{account.path}: {count} documents break {name}, as allowed" for name, count in account.allowed.items()
        ]
        if account.endless:
            found.append(
                f"{account.path}: {account.endless} documents train no end, as the tokenizer has no EOS; "
                'name one: special_tokens: {eos_token: "..."}'
            )
        if account.truncated:
            found.append(f"{account.path}: {account.truncated} documents were cut to sequence_len")
        found += [
            f"{account.path}: {account.template}: {text} ({of_documents(count)})"
            for text, count in account.notes.items()
        ]
    return found


def untrained_rows(plan: ModelPlan) -> tuple[str, ...]:
    """A warning where new tokens get rows that the adapter does not train."""
    made = max((p.shape[0] - p.stored_rows for p in plan.root if p.stored_rows is not None), default=0)
    if plan.adapter is None or not (made or plan.descriptions):
        return ()
    tables = [p.name for p in plan.root if len(p.shape) > 1 and p.shape[0] == plan.config.vocab_size]
    ends = [name.removesuffix(".weight") for name in tables]
    listed = {row for rows in (plan.adapter.trainable_token_indices or {}).values() for row in rows}
    left = [name for name in ends if name not in plan.adapted and not is_trained(name, plan.adapter)]
    if left:
        modules = ", ".join(name.rpartition(".")[2] for name in ends)
        rows = f"{made} new rows" if made else f"the rows of {len(plan.descriptions)} new tokens"
        return (
            f"{rows} of {' and '.join(left)} stay at their start values: "
            f"set lora_modules_to_save: [{modules}] to train them",
        )
    missed = sorted(plan.descriptions.keys() - listed) if listed else []
    if missed:
        return (f"the adapter that goes on has no rows for the new tokens {missed}: they stay at their start values",)
    return ()


def end_facts(recipe: Recipe, result: RunResult, *, resumed: bool) -> dict[str, str]:
    """How it went and where things are."""
    outcome, folder = result.outcome, result.output_dir
    facts = {"steps": f"{outcome.steps} in {outcome.seconds:.0f} s" + _reason(outcome.reason)}
    if outcome.first_loss is not None and outcome.last_loss is not None:
        facts["training loss"] = f"{outcome.first_loss:.4f} -> {outcome.last_loss:.4f}"
    if outcome.first_eval_loss is not None and outcome.last_eval_loss is not None:
        before = f"{outcome.first_eval_loss:.4f} -> " if recipe.evaluation.eval_on_start and not resumed else ""
        facts["evaluation loss"] = f"{before}{outcome.last_eval_loss:.4f}"
    facts["adapter" if recipe.adapter.adapter else "model"] = str(folder)
    facts["loss curve"] = str(folder / "loss.png")
    facts["record"] = f"{folder / 'run.json'}, {folder / 'metrics.jsonl'}"
    return facts


def next_steps(recipe: Recipe, plan: ModelPlan, result: RunResult) -> list[tuple[str, str]]:
    """What a user types next, each with its purpose."""
    folder = result.output_dir
    if recipe.adapter.adapter:
        code = f"PeftModel.from_pretrained({loading(plan)}, {str(folder)!r})"
    else:
        code = f"AutoModelForCausalLM.from_pretrained({str(folder)!r})"
    return [("load it in Python", code), ("train longer", longer(recipe, folder))]


def loading(plan: ModelPlan) -> str:
    """The code that loads an adapter's base; one of LoftQ fits the base as it was quantized, and no other."""
    if not plan.loftq or plan.quantizer is None:
        return f"AutoModelForCausalLM.from_pretrained({plan.source!r})"
    double = plan.quantizer.options.get("double_quantization", False)
    details = f"bnb_4bit_quant_type={plan.quantizer.name!r}, bnb_4bit_use_double_quant={double}"
    how = "load_in_8bit=True" if plan.quantizer.bits == 8 else f"load_in_4bit=True, {details}"
    return f"AutoModelForCausalLM.from_pretrained({plan.source!r}, quantization_config=BitsAndBytesConfig({how}))"


def longer(recipe: Recipe, folder: Path) -> str:
    """The command of the same run with more steps, into a folder of its own."""
    changed = ("num_epochs=", "max_steps=", "output_dir=", "resume_from_checkpoint=")
    words = [word for word in recipe.overrides if not word.startswith(changed)]
    steps = recipe.training.max_steps
    more = f"max_steps={2 * steps}" if steps else f"num_epochs={recipe.training.num_epochs + 1:g}"
    return shlex.join(["ftkit", "train", recipe.file, *words, more, f"output_dir={folder}-longer"])


def record_of(
    recipe: Recipe,
    inputs: Inputs,
    loaded: Loaded,
    result: RunResult,
    timings: Mapping[str, float],
    backend: Mapping[str, Any],
) -> RunRecord:
    """The run as run.json holds it."""
    plan = loaded.plan
    trainable = sum(whole_shape(p).numel() for p in loaded.net.parameters() if p.requires_grad)
    model: dict[str, Any] = {
        "base_model": plan.base_model,
        "weights": fingerprint(plan.source, plan.revision),
        "class": plan.net_class,
        "parameters": plan.num_parameters,
        "trainable": trainable,
        "quantizer": plan.quantizer.name if plan.quantizer else None,
    }
    return RunRecord(
        settings={name: section.model_dump(mode="json", by_alias=True) for name, section in recipe.sections().items()},
        substitutions=[asdict(substitution) for substitution in result.substitutions],
        model=model,
        tokens=token_facts(inputs, loaded),
        data=inputs.prepared.report.to_json(),
        timings=timings,
        backend=backend,
        result=asdict(result.outcome),
        samples=[{"prompt": p, "before": b, "after": a} for p, b, a in result.samples],
    )


def short(dtype: torch.dtype | None) -> str:
    """`torch.bfloat16` -> `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def _reason(reason: str) -> str:
    return "" if reason == "done" else f", ended early: {reason}"
