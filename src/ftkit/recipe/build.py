"""Values read from YAML -> sections, collecting every problem instead of stopping at the first.

A null is the same as an absent key, everywhere.
"""

from __future__ import annotations

from typing import Any

from ftkit.recipe.fit import MISFIT, fit_section, unknown_key
from ftkit.recipe.keys import HOLDERS
from ftkit.recipe.recipe import SECTIONS
from ftkit.recipe.section.base import Section
from ftkit.recipe.source import Source


def build_sections(source: Source, *, lenient: bool = False) -> dict[str, Section]:
    """Return the sections that could be built; what could not stands in `source.problems`.

    With `lenient`, unknown keys are warnings.
    """
    own: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, value in without_nulls(source.data).items():
        if key in HOLDERS:
            own[HOLDERS[key][0]][key] = value
        else:
            unknown_key(source, (key,), HOLDERS, lenient=lenient)
    sections: dict[str, Section] = {}
    for name, kind in SECTIONS.items():
        section = fit_section(source, kind, own[name], (), lenient=lenient)
        if section is not MISFIT:
            sections[name] = section
    return sections


def without_nulls(value: Any) -> Any:
    """Drop every key whose value is null, at any depth; nulls in lists stay, to be refused by place."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
