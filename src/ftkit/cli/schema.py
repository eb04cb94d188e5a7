"""`ftkit schema`: the JSON Schema of recipes for editors, or the page of all keys."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `schema` to the commands."""
    parser = subparsers.add_parser(
        "schema",
        help="write the JSON schema of recipes, for editors",
        description="Write the JSON Schema of recipes, which yaml-language-server and other editors read.",
    )
    parser.add_argument("--markdown", action="store_true", help="write the page of all keys instead")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to this file instead of the terminal")


def run(arguments: argparse.Namespace) -> int:
    """Write what was asked for; return 0."""
    text = as_markdown() if arguments.markdown else as_json()
    if arguments.output:
        Path(arguments.output).write_text(text, encoding="utf8")
    else:
        print(text, end="")
    return 0


def as_json() -> str:
    """The schema as text."""
    from ftkit.recipe.schema import recipe_schema

    return json.dumps(recipe_schema(), indent=1, ensure_ascii=False) + "\n"


def as_markdown() -> str:
    """docs/recipe.md as text."""
    from ftkit.recipe.document import document

    return document()
