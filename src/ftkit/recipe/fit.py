"""Values as YAML gave them -> what a section's fields say, with every misfit noted at its place.

It knows quoted numbers, the words people write for true and false, placeholders nobody filled in, and the line of
everything.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from ftkit.recipe.keys import nearest, yaml_keys
from ftkit.recipe.scalars import read_scalar
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
FLAGS = {"true": True, "yes": True, "on": True, "y": True, "false": False, "no": False, "off": False, "n": False}
PLACEHOLDER = r"\$\{\w+(:?[-+?=][^{}]*)?\}"  # `${NAME}`, `${NAME:-default}`; not `${{`: a template's own
CLOCK = r"[-+]?\d+(:[0-5]?\d)+(\.\d*)?"
TEXTS_WITH_DOLLARS = frozenset({"chat_template_jinja", "format", "no_input_format"})
LARGEST = sys.float_info.max
MISFIT: Any = object()  # what `fit` returns after noting a problem


def fit_section(source: Source, kind: type[Section], values: Mapping[str, Any], path: Path, *, lenient: bool) -> Any:
    """The section made of `values`, or MISFIT after noting everything that does not fit."""
    names, fields, fitted = yaml_keys(kind), kind.model_fields, {}
    for key, value in values.items():
        if key not in names:
            unknown_key(source, (*path, key), names, lenient=lenient)
            fitted[key] = None if lenient else MISFIT
        else:
            fitted[names[key]] = fit(source, fields[names[key]].annotation, value, (*path, key), lenient=lenient)
    for key, name in names.items():
        if name not in fitted and fields[name].is_required():
            help = f"add `{key}: ...`, {expected(fields[name].annotation)}"
            source.note("missing", (*path, key), f"the key `{key}` is missing", help)
            fitted[name] = MISFIT
    if any(value is MISFIT for value in fitted.values()):
        return MISFIT
    return kind.model_construct(**{name: value for name, value in fitted.items() if name in fields})


def fit(source: Source, annotation: Any, value: Any, path: Path, *, lenient: bool) -> Any:
    """`value` as `annotation` wants it, or MISFIT after noting why not."""
    if isinstance(value, str) and "${" in value and is_placeholder(source, value, path):
        return MISFIT
    for arm in arms(annotation):
        if arm is Any:
            return value
        if isinstance(value, list) and get_origin(arm) is tuple:
            each = get_args(arm)[0]
            items = [fit(source, each, item, (*path, index), lenient=lenient) for index, item in enumerate(value)]
            return MISFIT if any(item is MISFIT for item in items) else tuple(items)
        if isinstance(value, dict) and isinstance(arm, type) and issubclass(arm, Section):
            return fit_section(source, arm, value, path, lenient=lenient)
        if isinstance(value, dict) and arm is FrozenMap:
            return MISFIT if placeholders_within(source, value, path) else FrozenMap(value)
    scalar = fit_scalar(arms(annotation), value, source.raw.get(path))
    if scalar is MISFIT:
        what = f"`{path[-1]}` must be" if isinstance(path[-1], str) else "expected"
        message = f"{what} {expected(annotation)}, got {show(value)}"
        source.note("type", path, message, hint(annotation, value, path))
    return scalar


def fit_scalar(allowed: Iterable[Any], value: Any, raw: str | None) -> Any:
    """`value` as one of the scalar types `allowed`, or MISFIT.

    `raw` is the text in the file that `value` was read from, where it was read as a number.
    """
    allowed = tuple(allowed)
    if type(value) in (bool, int) and type(value) in allowed:
        return value
    if isinstance(value, float) and float in allowed:
        return value if abs(value) <= LARGEST else MISFIT
    for arm in allowed:
        if get_origin(arm) is Literal:
            choice = next((choice for choice in get_args(arm) if same_choice(choice, value)), MISFIT)
            if choice is not MISFIT:
                return choice
    if bool in allowed and isinstance(value, str) and value.lower() in FLAGS:
        return FLAGS[value.lower()]
    number = read_scalar(value.strip()) if isinstance(value, str) else value
    if isinstance(number, int | float) and not isinstance(number, bool) and abs(number) <= LARGEST:
        if int in allowed and number == int(number):
            return int(number)
        if float in allowed:
            return float(number)
    if str in allowed:
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return raw or str(value)
    return MISFIT


def flag(value: Any) -> bool | None:
    """What a value says where true or false is meant; None where it says neither."""
    if isinstance(value, bool):
        return value
    return FLAGS.get(value.lower()) if isinstance(value, str) else None


def same_choice(choice: Any, value: Any) -> bool:
    """Whether `value` names `choice`; capital letters do not count in text."""
    if isinstance(choice, str):
        return isinstance(value, str) and value.lower() == choice.lower()
    return type(choice) is type(value) and bool(choice == value)


def unknown_key(source: Source, path: Path, known: Iterable[str], *, lenient: bool) -> None:
    """Note a key that nobody reads."""
    key = str(path[-1])
    guess = nearest(key, known)
    help = f"did you mean `{guess}`?" if guess else "remove it; `ftkit schema` lists all keys"
    severity = "warning" if lenient else "error"
    source.note("unknown-key", path, f"no key is called `{key}`", help, severity=severity, at_key=True)


def is_placeholder(source: Source, value: str, path: Path) -> bool:
    """Note a `${NAME}` that nobody filled in; whether there is one."""
    found = re.search(PLACEHOLDER, value)
    if found is None or path[-1] in TEXTS_WITH_DOLLARS:
        return False
    help = "write the value, or give it on the command line; environment variables are not read from recipes"
    source.note("placeholder", path, f"{found.group()} was never filled in", help)
    return True


def placeholders_within(source: Source, value: Any, path: Path) -> bool:
    """Note the placeholders anywhere inside a free mapping; whether there are any."""
    if isinstance(value, str):
        return is_placeholder(source, value, path)
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [placeholders_within(source, item, (*path, step)) for step, item in pairs]
    return any(found)


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
            choices = ", ".join(map(str, get_args(arm)))
            words.append(f"one of {choices}" if len(get_args(arm)) > 1 else choices)
        elif get_origin(arm) is tuple:
            words.append("a list")
        elif isinstance(arm, type) and issubclass(arm, Section):
            words.append("a mapping")
        else:
            words.append(WORDS.get(arm, "a value"))
    return " or ".join(dict.fromkeys(words)) or "a value"


def hint(annotation: Any, value: Any, path: Path) -> str:
    """What to do about a value of the wrong kind."""
    allowed = arms(annotation)
    takes_list = any(get_origin(arm) is tuple for arm in allowed)
    if isinstance(value, dict) and takes_list:
        return "put `- ` before the first key of each item"
    if takes_list and not isinstance(value, list):
        return f"write `{path[-1]}: [{show(value)}]`"
    if isinstance(value, str) and (int in allowed or float in allowed) and re.fullmatch(CLOCK, value):
        return "some readers take this for a time in base 60; write the number itself"
    if isinstance(value, str) and (int in allowed or float in allowed) and "_" in value:
        return f"write {value.replace('_', '')}"
    if isinstance(value, bool) and str in allowed:
        return f'quote it, "{show(value)}", if it is meant as text'
    choices = [str(choice) for arm in allowed if get_origin(arm) is Literal for choice in get_args(arm)]
    guess = nearest(str(value), choices) if choices else None
    return f"did you mean `{guess}`?" if guess else ""


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
