"""Values read from YAML -> sections, collecting every problem instead of stopping at the first.

A null is the same as an absent key, everywhere. Messages are ours: pydantic says which path does not fit, the field's type
says in words what would.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ftkit.recipe.keys import HOLDERS, nearest, yaml_keys
from ftkit.recipe.recipe import SECTIONS
from ftkit.recipe.section.base import Section
from ftkit.recipe.section.frozen import FrozenMap
from ftkit.recipe.source import Path, Source

WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    FrozenMap: "a mapping",
}


def build_sections(source: Source, *, lenient: bool = False) -> dict[str, Section]:
    """Return the sections that could be built; what could not stands in `source.problems`.

    Args:
        lenient: unknown keys are warnings.
    """
    data = without_nulls(source.data)
    unknown = [key for key in data if key not in HOLDERS]
    for key in unknown:
        source.problems.append(unknown_key(source, (key,), HOLDERS, lenient=lenient))
    sections: dict[str, Section] = {}
    for name, kind in SECTIONS.items():
        own = {key: data[key] for key in data if key in HOLDERS and HOLDERS[key][0] == name}
        section = build_one(source, kind, own, lenient=lenient)
        if section is not None:
            sections[name] = section
    return sections


def build_one(source: Source, kind: type[Section], values: dict[str, Any], *, lenient: bool) -> Section | None:
    """One section, or None after noting why not."""
    found = flags_as_numbers(kind, values, ())
    for path, message in found:
        source.problems.append(source.problem("type", path, message))
    try:
        section = kind.model_validate(values)
    except ValidationError as invalid:
        noted = {path for path, _ in found}
        for path in dict.fromkeys(existing(error["loc"], values, kind) for error in invalid.errors()):
            if path in noted:
                continue
            source.problems.append(describe(source, kind, path, values, lenient=lenient))
        return None
    return None if found else section


def without_nulls(value: Any) -> Any:
    """Drop every key whose value is null, at any depth; nulls in lists stay, to be refused by place."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def existing(location: tuple[str | int, ...], values: Any, kind: type[BaseModel]) -> Path:
    """The part of pydantic's `location` that is a path in `values`: it also names the arms of unions it tried.

    A missing key keeps its own name at the end.
    """
    path: list[str | int] = []
    for step in location:
        if isinstance(values, dict) and step in values:
            path.append(step)
            values = values[step]  # type: ignore[index]
        elif isinstance(values, list) and isinstance(step, int) and step < len(values):
            path.append(step)
            values = values[step]
        elif isinstance(values, dict) and step == location[-1]:
            path.append(step)
    return tuple(path)


def describe(source: Source, kind: type[Section], path: Path, values: Any, *, lenient: bool) -> Any:
    """The problem at `path`: an unknown key, a missing one, or a value of the wrong kind."""
    holder, annotation = annotation_at(kind, path)
    try:
        value = value_at(values, path)
    except KeyError:
        return source.problem(
            "missing", path, f"the key `{path[-1]}` is missing", f"add `{path[-1]}: ...`, {expected(annotation)}"
        )
    if annotation is None and holder is not None:
        return unknown_key(source, path, yaml_keys(holder), lenient=lenient)
    shown = (
        f"`{path[-1]}` must be {expected(annotation)}"
        if isinstance(path[-1], str)
        else f"expected {expected(annotation)}"
    )
    return source.problem("type", path, f"{shown}, got {show(value)}", hint(annotation, value))


def unknown_key(source: Source, path: Path, known: Mapping[str, Any], *, lenient: bool) -> Any:
    """The problem of a key nobody reads."""
    key = str(path[-1])
    guess = nearest(key, known)
    help = f"did you mean `{guess}`?" if guess else "remove it; `ftkit schema` lists all keys"
    severity = "warning" if lenient else "error"
    return source.problem("unknown-key", path, f"no key is called `{key}`", help, severity=severity, at_key=True)


def annotation_at(kind: type[Section], path: Path) -> tuple[type[Section] | None, Any]:
    """The section that holds the last step of `path`, and that field's type (None when there is no such field)."""
    holder: type[Section] | None = kind
    annotation: Any = kind
    for step in path:
        if isinstance(step, int):
            annotation = next(
                (arm for outer in arms(annotation) for arm in get_args(outer)[:1] if get_origin(outer) is tuple), None
            )
        else:
            holder = next((arm for arm in arms(annotation) if isinstance(arm, type) and issubclass(arm, Section)), None)
            if holder is None:
                return None, None
            name = yaml_keys(holder).get(step)
            annotation = holder.model_fields[name].annotation if name else None
    return holder, annotation


def arms(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the type itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def expected(annotation: Any) -> str:
    """A type in words: `a whole number or a number`."""
    words = []
    for arm in arms(annotation):
        if arm is type(None):
            continue
        if get_origin(arm) is Literal:
            words.append(
                "one of " + ", ".join(map(str, get_args(arm))) if len(get_args(arm)) > 1 else str(get_args(arm)[0])
            )
        elif get_origin(arm) is tuple:
            words.append("a list")
        elif isinstance(arm, type) and issubclass(arm, Section):
            words.append("a mapping")
        else:
            words.append(WORDS.get(arm, "a value"))
    return " or ".join(dict.fromkeys(words)) or "a value"


def hint(annotation: Any, value: Any) -> str:
    """What to do about a value of the wrong kind."""
    if isinstance(value, str) and "${" in value:
        return "this is a placeholder that nobody filled in; write the value, or give it on the command line"
    if isinstance(value, dict) and any(get_origin(arm) is tuple for arm in arms(annotation)):
        return "put `- ` before the first key of each item"
    choices = [str(choice) for arm in arms(annotation) if get_origin(arm) is Literal for choice in get_args(arm)]
    guess = nearest(str(value), choices) if choices else None
    return f"did you mean `{guess}`?" if guess else ""


def flags_as_numbers(kind: type[Section], values: Mapping[str, Any], path: Path) -> list[tuple[Path, str]]:
    """Places where true or false stands for a number, which Python would read as 1 or 0."""
    found: list[tuple[Path, str]] = []
    for key, value in values.items():
        name = yaml_keys(kind).get(key)
        if name is None or not isinstance(value, bool):
            continue
        allowed = arms(kind.model_fields[name].annotation)
        numeric = int in allowed or float in allowed
        if numeric and bool not in allowed:
            message = f"`{key}` must be {expected(kind.model_fields[name].annotation)}, got {show(value)}"
            found.append(((*path, key), message))
    return found


def value_at(values: Any, path: Path) -> Any:
    """The value at `path`; KeyError when there is none."""
    for step in path:
        try:
            values = values[step]
        except (KeyError, IndexError, TypeError):
            raise KeyError(step) from None
    return values


def show(value: Any) -> str:
    """A value as YAML would show it, short."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
