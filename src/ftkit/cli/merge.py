"""`ftkit merge RECIPE_OR_FOLDER [key=value ...]`: an adapter and its base into one model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftkit.cli.merge_request import Request, read_request, refuse_missing_base, refuse_unquantized
from ftkit.cli.quiet import quiet_imports
from ftkit.errors import DataError, RecipeError

if TYPE_CHECKING:
    from torch import Tensor

    from ftkit.save.merge import Merged
    from ftkit.save.merge_check import Difference

DTYPES = ("bfloat16", "float16", "float32")
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
PROMPTS = ("The capital of France is", "Once upon a time", "1, 2, 3, 4,", "def main():\n")  # where a recipe has none
MOST_TOKENS = 128  # of a prompt


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `merge` to the commands."""
    about = (
        "Merge an adapter into its base and write a model that transformers reads, shard by shard, with about one "
        "parameter in memory. What was written is compared with the adapter on its base before it gets its name."
    )
    parser = subparsers.add_parser("merge", description=about)
    parser.add_argument("recipe", metavar="recipe_or_folder", help="recipe, its output_dir, a checkpoint, any adapter")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="a recipe key, as for ftkit train")
    parser.add_argument("--out", metavar="DIR", help="a new folder (default: merged/ in the adapter's folder)")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="of the result (default: the base's own 16 bits, else bfloat16)"
    )
    parser.add_argument(
        "--faithful", action="store_true", help="merge into the base as it was trained on: quantized and back"
    )
    parser.add_argument("--base", "--base_model", "--base-model", metavar="DIR", help="where the base model is now")
    parser.add_argument(
        "--adapter", "--lora_model_dir", "--lora-model-dir", metavar="DIR", help="another adapter than the recipe's own"
    )
    parser.add_argument("--any-base", action="store_true", help="take a base that is not the one that was trained on")
    parser.add_argument("--shard-size", default="5GB", metavar="SIZE", help="most bytes of a file (5GB)")
    parser.add_argument("--no-check", action="store_true", help="do not compare the result with the adapter")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")


def run(arguments: argparse.Namespace) -> int:
    """Merge, check and report; return 0."""
    quiet_imports()
    from ftkit.report.console import Console
    from ftkit.save.new_folder import new_folder, refuse_occupied

    console = Console(sys.stderr if arguments.json else sys.stdout)
    shard_bytes = size_of(arguments.shard_size)
    request = read_request(arguments)
    out = Path(arguments.out) if arguments.out else request.adapter / "merged"
    refuse_occupied(out)
    merged, tokenizer, notes = prepare(arguments, request)
    with new_folder(out, "the merged model") as folder:
        from ftkit.save.merge import write_merged

        files = write_merged(merged, folder, tokenizer=tokenizer, shard_bytes=shard_bytes)
        found = None if arguments.no_check else check(merged, folder, tokenizer, request.prompts)
    report = report_of(merged, request, out, files, [*notes, *merged.notes], found)
    if arguments.json:
        print(json.dumps(report | {"check": found and asdict(found)}, indent=2))
    else:
        console.facts("Merged", facts_of(report, found))
        for note in report["notes"]:
            console.say(f"note: {note}")
    return 0


def size_of(text: str) -> int:
    """Bytes of `5GB`, `200MB` or a number."""
    number, unit = text[:-2], UNITS.get(text[-2:].upper())
    if unit is None:
        number, unit = text, 1
    if not number.strip().isdigit() or int(number) < 1:
        help = f"write a whole number and {', '.join(UNITS)}, such as 5GB"
        raise RecipeError(f"a size is a number of bytes, got {text}", where="--shard-size", help=help)
    return int(number) * unit


def prepare(arguments: argparse.Namespace, request: Request) -> tuple[Merged, Any, list[str]]:
    """Open base, adapter and tokenizer, and check that they belong together."""
    import torch

    from ftkit.save.merge import Merged
    from ftkit.save.merge_adapter import open_adapter
    from ftkit.save.merge_base import Base

    adapter = open_adapter(request.adapter)
    refuse_missing_base(request)
    if not arguments.faithful:
        refuse_unquantized(request)
    quantization = request.quantization if arguments.faithful else None
    base = Base(request.model, quantization, None if arguments.any_base else request.expected)
    tokenizer, notes = tokenizer_of(request, base.source)
    own = base.dtype
    default = own if own in (torch.bfloat16, torch.float16) else torch.bfloat16
    dtype = getattr(torch, arguments.dtype) if arguments.dtype else default
    return Merged(base, adapter, dtype, 0 if tokenizer is None else len(tokenizer)), tokenizer, notes


def tokenizer_of(request: Request, source: str) -> tuple[Any, list[str]]:
    """The tokenizer that lies with the adapter, else the base's; and a note where there is none."""
    from ftkit.data.tokens import TOKENIZER_FILES, read_tokenizer
    from ftkit.recipe.section.tokens import TokenSection

    own = any((request.adapter / name).is_file() for name in TOKENIZER_FILES)
    model = request.model
    try:
        tokenizer = read_tokenizer(
            TokenSection(),
            str(request.adapter) if own else source,
            revision=None if own else model.revision_of_model,
            trust_remote_code=model.trust_remote_code,
        )
    except DataError as none:
        if own:
            raise
        return None, [f"no tokenizer is written: {none.what}"]
    return tokenizer, []


def check(merged: Merged, folder: Path, tokenizer: Any, prompts: Sequence[str]) -> Difference:
    """Compare what was written with the adapter on its base."""
    import torch

    from ftkit.save.merge_check import check_merged

    ids = [] if tokenizer is None else [ids_of(tokenizer, prompt) for prompt in prompts or PROMPTS]
    newest = torch.arange(max(0, merged.rows - 8), merged.rows)[None]  # the last rows are those of new tokens
    return check_merged(merged, folder, [*(one for one in ids if one.shape[1]), newest])


def ids_of(tokenizer: Any, prompt: str) -> Tensor:
    """Ids (1, T) of a prompt, as a user's turn where there is a chat template."""
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ids: Tensor = tokenizer(prompt, add_special_tokens=not tokenizer.chat_template, return_tensors="pt").input_ids
    return ids[:, :MOST_TOKENS].long()


def report_of(
    merged: Merged, request: Request, out: Path, files: Sequence[str], notes: Sequence[str], found: Difference | None
) -> dict[str, Any]:
    """What was done, as plain values."""
    base, config = merged.base, merged.adapter.config
    kind = "DoRA" if config.use_dora else "rsLoRA" if config.use_rslora else "LoRA"
    return {
        "out": str(out),
        "files": list(files),
        "bytes": sum((out / name).stat().st_size for name in files),
        "dtype": str(merged.dtype).removeprefix("torch."),
        "base": request.model.base_model,
        "base_as": base.kind,
        "adapter": str(request.adapter),
        "kind": f"{kind} r {config.r}",
        "adapted": len(merged.adapter.changes),
        "whole": sorted(merged.adapter.whole),
        "vocabulary": merged.rows,
        "tied": bool(base.tied) and merged.tied,
        "untied": bool(base.tied) and not merged.tied,
        "notes": list(notes),
    }


def facts_of(report: dict[str, Any], found: Difference | None) -> dict[str, str]:
    """The report for people."""
    how = "as it was trained on: " if "dequantized" in report["base_as"] else "as "
    facts = {
        "base": f"{report['base']}, {how}{report['base_as']}",
        "adapter": f"{report['adapter']}, {report['kind']} on {report['adapted']} modules"
        + (f", {len(report['whole'])} parameters whole" if report["whole"] else ""),
        "vocabulary": f"{report['vocabulary']:,} rows"
        + (", embedding and head still one tensor" if report["tied"] else "")
        + (", embedding and head are two tensors now" if report["untied"] else ""),
        "written": f"{report['out']}, {report['dtype']}, {len(report['files'])} files, {report['bytes'] / 1e9:,.2f} GB",
    }
    return facts | {"merged = adapter on base": "not compared" if found is None else in_words(found)}


def in_words(found: Difference) -> str:
    """The comparison in a line or two."""
    where = f"{found.number} positions" if found.what == "logits" else f"a sample of {found.number} layers"
    text = (
        f"{found.what} at {where} differ by {found.float32:.1e} of their size in float32, at most {found.largest:.1e}; "
        f"the adapter moves them by {found.effect:.1e}"
    )
    if found.own is not None:
        text += f"; computed in the files' dtype, by {found.own:.1e}"
    if found.same_top is not None:
        text += f"; the most likely token is the same at {found.same_top:.0%}"
    return text if found.what == "logits" else f"{text} (the whole does not fit into memory)"
