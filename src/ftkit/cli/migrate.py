"""`ftkit migrate recipe.yml ...`: an old recipe in today's dialect, as a diff, or written with `--write`."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from ftkit.errors import RecipeError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `migrate` to the commands."""
    parser = subparsers.add_parser(
        "migrate",
        help="rewrite an old recipe in today's dialect",
        description="Print what changes in a recipe of an older dialect; it means the same before and after.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="recipes")
    parser.add_argument("--write", action="store_true", help="change the files")


def run(arguments: argparse.Namespace) -> int:
    """Show or write the migration of every file; return 2 if one of them cannot be read, else 0."""
    done = [attempt(file, write=arguments.write) for file in arguments.files]
    return 0 if all(done) else 2


def attempt(file: str, *, write: bool) -> bool:
    """Migrate one file; one that cannot be read or written is named, and the next ones are migrated too."""
    try:
        return migrate_file(file, write=write)
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return False


def migrate_file(file: str, *, write: bool) -> bool:
    """Migrate one file; whether that was possible."""
    from ftkit.recipe.load import read_content
    from ftkit.recipe.migrate import migrate_text

    content = read_content(file)
    migrated = migrate_text(file, content)
    errors = [problem for problem in migrated.problems if problem.severity == "error"]
    for problem in migrated.problems:
        told = str(problem).split("\n")[0] if problem.code == "migrated" else str(problem)  # its help is this command
        print(told if problem.severity == "error" else f"{problem.severity}: {told}", file=sys.stderr)
    if not migrated.changed:
        if not errors:
            print(f"{file}: nothing to migrate", file=sys.stderr)
        return not errors
    if write:
        write_content(file, migrated.text.encode())
        rest = ", except for what is named above" if errors else ""
        print(f"{file}: migrated{rest}", file=sys.stderr)
    else:
        before, after = content.decode("utf-8-sig").splitlines(), migrated.text.splitlines()
        print("\n".join(difflib.unified_diff(before, after, file, f"{file} (migrated)", lineterm="")))
    return not errors


def write_content(file: str, content: bytes) -> None:
    """Write a recipe's file; RecipeError where that cannot be done."""
    try:
        Path(file).write_bytes(content)
    except OSError as bad:
        help = "allow writing to the file, or leave --write away and make the changes shown"
        raise RecipeError(f"the file cannot be written ({bad.strerror})", where=file, help=help) from None
