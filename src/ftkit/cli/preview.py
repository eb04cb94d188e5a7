"""`ftkit preview recipe.yml [key=value ...]`: rows as a run sees them, and how the first step is packed."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ftkit.cli.prepare import add_arguments, load
from ftkit.cli.quiet import quiet_imports

if TYPE_CHECKING:
    from ftkit.data.accounts import SetAccount
    from ftkit.data.preview import Piece, Style
    from ftkit.inputs import Inputs
    from ftkit.recipe import Recipe

BAR_WIDTH, LINE_WIDTH = 48, 80
MOST_BARS = 32  # packs of a step drawn in a terminal


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `preview` to the commands."""
    about = "Show rows as a run sees them, tokens coloured by what is trained, the mask report, and a step's packs."
    parser = subparsers.add_parser("preview", description=about)
    add_arguments(parser)
    parser.add_argument("-n", type=int, default=3, metavar="ROWS", help="rows to show (3)")
    parser.add_argument("--html", metavar="FILE", help="write a page of HTML instead")


def run(arguments: argparse.Namespace) -> int:
    """Show what was asked for; return 0."""
    quiet_imports()
    recipe, inputs = load(arguments.recipe, arguments.overrides, arguments.allow)
    documents = first_documents(inputs, arguments.n)
    if arguments.html:
        Path(arguments.html).write_text(page(recipe, inputs, documents), encoding="utf8")
        print(f"wrote {arguments.html}", file=sys.stderr)
    else:
        show(recipe, inputs, documents)
    return 0


def first_documents(inputs: Inputs, count: int) -> list[tuple[str, list[Piece]]]:
    """The first documents to be trained on, in the order of the data: where each is from, and its pieces."""
    from ftkit.data.preview import pieces_of

    train, shown = inputs.prepared.train, list[tuple[str, list["Piece"]]]()
    for index in range(min(count, len(train))):
        example = train[index]
        num_trained = int((example.labels >= 0).sum())
        heading = f"{example.where}: {len(example.input_ids)} tokens, {num_trained} trained"
        shown.append((heading, pieces_of(example, inputs.tokenizer)))
    return shown


def accounts_of(inputs: Inputs) -> list[SetAccount]:
    """All data set entries, those of evaluation last."""
    report = inputs.prepared.report
    return [*report.train.sets, *(report.evaluation.sets if report.evaluation else ())]


def packs_of_first_step(inputs: Inputs) -> list[list[int]]:
    """Tokens of each document, by pack."""
    lengths = inputs.prepared.train.lengths
    return [lengths[pack].tolist() for pack in inputs.steps.packs_in(0)]


def page(recipe: Recipe, inputs: Inputs, documents: list[tuple[str, list[Piece]]]) -> str:
    """The page of HTML."""
    from ftkit.data.mask_report import mask_report
    from ftkit.data.preview_page import Document, as_html

    train = inputs.prepared.train
    packs = [
        [
            Document(str(one.where), len(one.labels), int((one.labels >= 0).sum()))
            for one in (train[index] for index in pack)
        ]
        for pack in inputs.steps.packs_in(0)
    ]
    facts = [(f"{account.path} ({account.type})", mask_report(account)) for account in accounts_of(inputs)]
    return as_html(recipe.file, facts, documents, packs, recipe.data.sequence_len)


def show(recipe: Recipe, inputs: Inputs, documents: list[tuple[str, list[Piece]]]) -> None:
    """Everything for a terminal, or for the file that standard output is."""
    from ftkit.data.mask_report import mask_report
    from ftkit.data.preview import as_text, bar, legend
    from ftkit.report.console import Console

    style, console = style_of_output(), Console(width=LINE_WIDTH)
    print(legend(style))
    for heading, pieces in documents:
        print(f"\n{heading}\n{as_text(pieces, style)}")
    for account in accounts_of(inputs):
        console.facts(f"{account.path} ({account.type})", mask_report(account))
    packs, capacity = packs_of_first_step(inputs), recipe.data.sequence_len
    console.heading(f"Rows of the first step: {len(packs)}, of at most {capacity:,} tokens")
    for lengths in packs[:MOST_BARS]:
        noun = "document" if len(lengths) == 1 else "documents"
        print(f"  {bar(lengths, capacity, BAR_WIDTH, style)} {sum(lengths):,} tokens, {len(lengths)} {noun}")
    if len(packs) > MOST_BARS:
        print(f"  and {len(packs) - MOST_BARS} more")


def style_of_output() -> Style:
    """Colours on a terminal that takes them, unless NO_COLOR says otherwise; letters as the stream can."""
    from ftkit.data.preview import Style

    colour = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    unicode = (sys.stdout.encoding or "ascii").lower().replace("-", "") in ("utf8", "utf16", "utf32")
    return Style(colour, unicode)
