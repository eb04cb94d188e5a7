"""docs/recipe.md: every key with its type, default and meaning, made from the same source as the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ftkit.recipe.codes import explanations
from ftkit.recipe.fit import expected
from ftkit.recipe.keys import yaml_keys
from ftkit.recipe.migrations import RESTRUCTURED
from ftkit.recipe.no_effect import NO_EFFECT
from ftkit.recipe.recipe import SECTIONS
from ftkit.recipe.refused import REFUSED, REFUSED_OF_DATASETS
from ftkit.recipe.renames import RENAMED, RENAMED_OF_DATASETS
from ftkit.recipe.section.base import Section
from ftkit.recipe.section.data import DatasetSection
from ftkit.recipe.section.tokens import SpecialTokens

INTRODUCTION = """\
# Recipe keys

This page is made by `ftkit schema --markdown`; a test fails when it is stale. `ftkit schema` writes the same as a JSON
Schema for editors: put `# yaml-language-server: $schema=recipe.schema.json` at the top of a recipe.

A recipe is YAML, one level of keys. Numbers and booleans are read as YAML 1.2 reads them (`2e-4` is a number, `010` is
ten), a key without a value is absent, a key that stands twice with two values is an error, and so is one that nobody
knows. Any key can be given after the file: `ftkit check recipe.yml learning_rate=1e-4 datasets.0.path=my.jsonl
deepspeed=`; nothing after `=` means absent. `ftkit check --effective` prints every key with its value and where that
comes from.
"""


def document() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, *honoured(), *old_keys(), *problems()])


def honoured() -> Iterator[str]:
    """The sections, and what stands inside their keys."""
    for kind in SECTIONS.values():
        yield from section(kind)
        if kind is SECTIONS["tokens"]:
            yield from section(SpecialTokens, "### `special_tokens`")
        if kind is SECTIONS["data"]:
            yield from section(DatasetSection, "### An entry of `datasets` and `test_datasets`")


def section(kind: type[Section], title: str = "") -> Iterator[str]:
    """One section as a table."""
    about = (kind.__doc__ or "").strip()
    yield title or f"## {about.rstrip('.')}"
    yield ""
    rows = []
    for key, name in yaml_keys(kind).items():
        field = kind.model_fields[name]
        rows.append((f"`{key}`", expected(field.annotation), default(field), field.description or ""))
    yield from table(("key", "takes", "default", ""), rows)


def default(field: Any) -> str:
    """A field's default as YAML; nothing where it is absent or empty."""
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple) and value:
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if isinstance(value, int | float | str) else ""


def old_keys() -> Iterator[str]:
    """Keys of older dialects and other tools, by what becomes of them."""
    yield "## Keys of older recipes\n"
    yield "They are read, and `ftkit migrate` rewrites them.\n"
    renamed = [*RENAMED.items(), *RESTRUCTURED.items()]
    inside = [(f"datasets[].{old}", f"datasets[].{new}") for old, new in RENAMED_OF_DATASETS.items()]
    yield from table(("key", "today"), [(f"`{old}`", f"`{new}`") for old, new in (*renamed, *inside)])
    yield "## Keys without effect\n"
    yield "They are known, and noted by name.\n"
    yield from table(("keys", "why"), grouped(NO_EFFECT))
    yield "## Keys that are refused\n"
    yield "They ask for what ftkit does not do. One that is off (false, 0, empty) is only noted.\n"
    reasons = {key: f"{refusal.reason}; {refusal.help}" for key, refusal in REFUSED.items()}
    reasons |= {
        f"datasets[].{key}": f"{refusal.reason}; {refusal.help}" for key, refusal in REFUSED_OF_DATASETS.items()
    }
    yield from table(("keys", "why, and what to do"), grouped(reasons))


def problems() -> Iterator[str]:
    """The codes of problems."""
    yield "## Problems\n"
    yield "`ftkit check --explain CODE` prints one of these.\n"
    yield from table(("code", "meaning"), [(f"`{code}`", text) for code, text in explanations().items()])


def grouped(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """Keys of one reason in one row."""
    return [(", ".join(f"`{key}`" for key in keys), why) for why, keys in groupby(reasons, key=reasons.__getitem__)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown, with an empty line after it."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""
