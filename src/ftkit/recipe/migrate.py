"""An old recipe in today's dialect: the same migrations that every reading makes, written into the file's text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import yaml

from ftkit.recipe.build import modernise, without_nulls
from ftkit.recipe.edits import Edit
from ftkit.recipe.pasted import clean
from ftkit.recipe.problems import Problem
from ftkit.recipe.rewrite import apply_edits
from ftkit.recipe.source import Source, dotted, read_source

TOLD = "migrated", "migration-clash", "batch-size"  # what migrations did, and what of an old dialect they cannot mend


@dataclass(frozen=True, slots=True)
class Migrated:
    """The outcome of a migration.

    Args:
        text: the recipe in today's dialect; the text given where there was nothing to do.
        problems: what had to be changed, and why nothing could be (a file that is not YAML).
        changed: whether `text` is a new one; without that there is nothing to show or to write.
    """

    text: str
    problems: tuple[Problem, ...]
    changed: bool = False


def migrate_text(file: str, content: bytes | str) -> Migrated:
    """Return the recipe `content` in today's dialect, its comments and order kept."""
    source = read_source(file, content)
    unread = tuple(problem for problem in source.problems if problem.severity == "error")
    if unread:
        return Migrated(source.text, unread)
    before = len(source.problems)
    modernise(source)
    wrong = {problem.key for problem in source.problems if problem.severity == "error"}
    edits: list[Edit] = [edit for edit in source.edits if edit.op != "remove" or dotted(edit.path) not in wrong]
    told = tuple(problem for problem in source.problems[before:] if problem.code in TOLD)
    if not edits:
        return Migrated(source.text, tuple(problem for problem in told if problem.severity == "error"))
    help = "make the changes by hand; each is named above"
    try:
        text = apply_edits(clean(source.text), edits)
    except yaml.YAMLError as bad:  # an edit left no YAML for the next one
        why = getattr(bad, "problem", None) or "it cannot be edited"
        if isinstance(bad, yaml.composer.ComposerError):
            why = "a key that has to go holds an anchor (`&name`) that is used elsewhere"
        return Migrated(source.text, (*told, not_migrated(file, f"this recipe cannot be rewritten: {why}", help)))
    if not same_recipe(read_source(file, text), source):
        message = "this recipe cannot be rewritten without changing what it says"
        return Migrated(source.text, (*told, not_migrated(file, message, help)))
    text = text.replace("\n", "\r\n") if "\r\n" in source.text else text
    return Migrated(text, told, changed=text != source.text)


def not_migrated(file: str, message: str, help: str) -> Problem:
    """The refusal to rewrite a recipe."""
    return Problem("error", file, 0, 0, "", "not-migrated", message, help)


def same_recipe(new: Source, old: Source) -> bool:
    """Whether the text written says what the old one, read and modernised, says, with no error that it did not have."""
    modernise(new)
    return without_nulls(new.data) == without_nulls(old.data) and not errors(new) - errors(old)


def errors(source: Source) -> Counter[str]:
    """How many errors of each kind there are."""
    return Counter(problem.code for problem in source.problems if problem.severity == "error")
