"""`ftkit prepare recipe.yml [key=value ...]`: the data of a recipe into the cache, and the proof of its masks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftkit.cli.quiet import quiet_imports

if TYPE_CHECKING:
    from ftkit.data.accounts import PartReport
    from ftkit.inputs import Inputs
    from ftkit.recipe import Recipe
    from ftkit.report.console import Console


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `prepare` to the commands, and `preprocess`, its name elsewhere."""
    about = (
        "Prepare the data of a recipe into the cache that its runs read, and report what is trained and what is not."
    )
    parser = subparsers.add_parser("prepare", aliases=["preprocess"], description=about)
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the whole report, and nothing else, on standard output")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that prepare data."""
    parser.add_argument("recipe", help="the YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="a recipe key, as for ftkit train")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="NAME", help="an invariant that may fail: see the key allow"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prepare and report; return 0."""
    quiet_imports()
    from ftkit.report.console import Console

    console = Console(sys.stderr if arguments.json else sys.stdout)
    recipe, inputs = load(arguments.recipe, arguments.overrides, arguments.allow, console)
    if arguments.json:
        print(json.dumps(as_json(recipe, inputs), indent=2, ensure_ascii=False))
    else:
        show(recipe, inputs, console)
    return 0


def load(
    file: str, overrides: Sequence[str], allow: Sequence[str], console: Console | None = None
) -> tuple[Recipe, Inputs]:
    """The recipe and its data, prepared as a run would."""
    from ftkit.inputs import load_inputs
    from ftkit.model.config import check_config_file
    from ftkit.model.embedded import resolve_base_model
    from ftkit.recipe import load_recipe
    from ftkit.report.console import Console
    from ftkit.report.preparing import PrepareProgress
    from ftkit.unserved import refuse_unserved

    recipe = load_recipe(file, overrides)
    if allow:
        names = dict.fromkeys((*recipe.data.allow, *allow))
        recipe = load_recipe(file, [*overrides, f"allow=[{', '.join(names)}]"])
    refuse_unserved(recipe)
    progress = PrepareProgress(console or Console(sys.stderr))
    source = resolve_base_model(recipe.model.base_model, gguf_file=recipe.model.gguf_file)
    check_config_file(source)
    inputs = load_inputs(recipe, source, on_progress=progress)
    progress.done()
    return recipe, inputs


def as_json(recipe: Recipe, inputs: Inputs) -> dict[str, object]:
    """The report, the steps, and where things are."""
    from ftkit.inputs import cache_of

    steps = inputs.steps
    return {
        "cache": str(cache_of(recipe)),
        **inputs.prepared.report.to_json(),
        "packs": len(steps.packs),
        "steps_per_epoch": steps.steps_per_epoch,
        "num_steps": steps.num_steps,
        "notes": list(inputs.notes),
    }


def show(recipe: Recipe, inputs: Inputs, console: Console) -> None:
    """The report for people."""
    report, steps = inputs.prepared.report, inputs.steps
    for name, part in (("datasets", report.train), ("test_datasets", report.evaluation)):
        if part is not None:
            show_part(name, part, console)
    grouped = "packs" if recipe.data.sample_packing else "documents"
    facts = {
        "documents": f"{report.num_train:,} to train on, {report.num_evaluation:,} held out",
        "rows of a batch": f"{len(steps.packs):,} {grouped} of at most {recipe.data.sequence_len:,} tokens",
        "steps": f"{steps.num_steps:,}, {steps.steps_per_epoch:,} an epoch, in one process",
    }
    console.facts("Ready to train", facts)
    for note in inputs.notes:
        console.say(f"note: {note}")


def show_part(name: str, part: PartReport, console: Console) -> None:
    """The data sets of one part, and the cache."""
    from ftkit.data.mask_report import mask_report

    for account in part.sets:
        console.facts(f"{name}: {account.path} ({account.type})", mask_report(account))
    console.say(f"  cache {part.cache}, in {part.folder}")
    if part.rejected:
        console.say(f"  {len(part.rejected):,} rows left out, each with its reason, in {part.folder}/rejected.jsonl")
