"""Sections made in Python code, by the same checks as those that come from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from ftkit.recipe.fit import MISFIT, arms, fit_section
from ftkit.recipe.keys import yaml_keys
from ftkit.recipe.section.base import Section, dump
from ftkit.recipe.source import Source


def fit_values(kind: type[Section], values: Mapping[str, Any]) -> Any:
    """The section of `values`, which are named by field or by YAML key; None is absent.

    Raises:
        ValueError: with everything that does not fit.
    """
    aliases = {name: key for key, name in yaml_keys(kind).items()}
    source = Source(kind.__name__, "")
    given = {aliases.get(name, name): plain(value) for name, value in values.items() if value is not None}
    built = fit_section(source, kind, given, (), lenient=False)
    if built is MISFIT:
        raise ValueError("\n".join(map(str, source.problems)))
    fields = kind.model_fields
    nothing = {name for name, value in values.items() if value is None and name in fields and takes_none(fields[name])}
    return built.model_copy(update=dict.fromkeys(nothing)) if nothing else built


def takes_none(field: Any) -> bool:
    """Whether None is a value of its own for this field."""
    return type(None) in arms(field.annotation) or type(None) in get_args(field.annotation)


def plain(value: Any) -> Any:
    """Sections and frozen values as the dicts and lists that a file would give."""
    if isinstance(value, Section):
        names = {name: field.alias or name for name, field in value.model_fields.items()}
        return plain({names[name]: getattr(value, name) for name in value.model_fields_set})
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else dump(value, by_alias=True)
