"""`ftkit interleave spec.yml`: layers of models stacked into a deeper one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftkit.cli.merge import size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftkit.recipe.section.slices import Stacking
    from ftkit.save.interleave import Stack


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `interleave` to the commands."""
    about = (
        "Stack layers of one or several models into a deeper model, as a file in mergekit's slice syntax says "
        "(merge_method: passthrough). Tensors stream from file to file, so memory holds one at a time."
    )
    parser = subparsers.add_parser("interleave", description=about)
    parser.add_argument("spec", metavar="spec.yml", help="the slices; configs/interleave-*.yml are examples")
    parser.add_argument("--out", metavar="DIR", help="a new folder (default: outputs/ and the name of the file)")
    parser.add_argument("--shard-size", default="5GB", metavar="SIZE", help="most bytes of a file (5GB)")
    parser.add_argument("--plan", action="store_true", help="say what would be written, and write nothing")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Stack, write and report; return 0."""
    from ftkit.recipe.slices import load_stacking
    from ftkit.report.console import Console
    from ftkit.save.interleave import stack_layers, write_stack
    from ftkit.save.new_folder import new_folder, refuse_occupied

    shard_bytes = size_of(arguments.shard_size)
    stacking = load_stacking(arguments.spec)
    out = Path(arguments.out) if arguments.out else Path("outputs") / Path(arguments.spec).stem
    files: Sequence[str] = ()
    if not arguments.plan:
        refuse_occupied(out)
    stack = stack_layers(stacking)
    if not arguments.plan:
        with new_folder(out, "the stacked model") as folder:
            files = write_stack(stack, folder, shard_bytes=shard_bytes)
    report = report_of(stacking, stack, out, files)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        console = Console(sys.stdout)
        console.facts("Plan" if arguments.plan else "Stacked", facts_of(report))
        for note in report["notes"]:
            console.say(f"note: {note}")
    return 0


def report_of(stacking: Stacking, stack: Stack, out: Path, files: Sequence[str]) -> dict[str, Any]:
    """What was done, as plain values."""
    import math

    taken = stack.weights.taken
    numel = {name: math.prod(stack.weights.shape(name)) for name in taken}
    notes = (
        [] if stack.is_checked else ["transformers does not know this architecture; names and shapes are not checked"]
    )
    return {
        "out": str(out),
        "files": list(files),
        "bytes": sum((out / name).stat().st_size for name in files),
        "dtype": str(stack.dtype).removeprefix("torch."),
        "layers": len(stack.places),
        "slices": [{"model": one.model, "layers": [one.first, one.last]} for one in stacking.slices],
        "parameters": sum(numel.values()),
        "scaled": {name: one.scale for name, one in taken.items() if one.scale != 1.0},
        "tokenizer": stack.tokenizer,
        "notes": notes,
    }


def facts_of(report: dict[str, Any]) -> dict[str, str]:
    """The report for people."""
    slices = [f"{one['layers'][0]}-{one['layers'][1] - 1} of {one['model']}" for one in report["slices"]]
    zeros = sum(scale == 0 for scale in report["scaled"].values())
    facts = {
        "layers": f"{report['layers']}: {', '.join(slices)}",
        "parameters": f"{report['parameters'] / 1e6:,.1f} million in {report['dtype']}",
        "scaled": f"{len(report['scaled'])} tensors, {zeros} of them to zero" if report["scaled"] else "nothing",
        "tokenizer": report["tokenizer"],
    }
    size = f", {len(report['files'])} files, {report['bytes'] / 1e9:,.2f} GB" if report["files"] else ""
    return facts | {"written" if report["files"] else "would be written": f"{report['out']}{size}"}
