"""Values read from YAML -> sections, collecting every problem instead of stopping at the first.

A null is the same as an absent key, everywhere.
"""

from __future__ import annotations

from typing import Any

from ftkit.recipe.dataset_types import normalise_types
from ftkit.recipe.deepspeed import normalise_deepspeed
from ftkit.recipe.fit import MISFIT, fit_section
from ftkit.recipe.fsdp import normalise_fsdp
from ftkit.recipe.judge import judge
from ftkit.recipe.keys import HOLDERS
from ftkit.recipe.migrations import migrate
from ftkit.recipe.recipe import SECTIONS
from ftkit.recipe.section.base import Section
from ftkit.recipe.sharegpt import normalise_sharegpt
from ftkit.recipe.source import Source


def build_sections(source: Source, *, lenient: bool = False) -> dict[str, Section]:
    """Return the sections that could be built; what could not stands in `source.problems`.

    `source.data` is brought into today's dialect first. With `lenient`, unknown keys are warnings.
    """
    modernise(source, lenient=lenient)
    own: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, value in without_nulls(source.data).items():
        own[HOLDERS[key][0]][key] = value
    sections: dict[str, Section] = {}
    for name, kind in SECTIONS.items():
        section = fit_section(source, kind, own[name], (), lenient=lenient)
        if section is not MISFIT:
            sections[name] = section
    return sections


def modernise(source: Source, *, lenient: bool = False) -> None:
    """Leave only today's keys in `source.data`; everything that was changed or taken out stands in its problems."""
    migrate(source)
    normalise_fsdp(source, lenient=lenient)
    normalise_deepspeed(source, lenient=lenient)
    normalise_types(source, lenient=lenient)
    normalise_sharegpt(source)
    judge(source, lenient=lenient)


def without_nulls(value: Any) -> Any:
    """Drop every key whose value is null, at any depth; nulls in lists stay, to be refused by place."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
