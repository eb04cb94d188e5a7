"""`key=value` words of the command line, put into a recipe before it is checked.

Dots go deeper (`datasets.0.path=my.jsonl`), values are read as YAML, and nothing after `=` means absent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from ftkit.recipe.problems import COMMAND_LINE, NOWHERE, Problem
from ftkit.recipe.source import MAX_VALUES, Loader, Path, Reader, Source, TooLargeError


def apply_overrides(source: Source, overrides: Sequence[str]) -> None:
    """Change `source.data` by each override in turn; one that cannot be read is a problem named `command line`."""
    for word in overrides:
        key, equals, text = word.partition("=")
        path = tuple(int(step) if re.fullmatch("[0-9]{1,9}", step) else step for step in key.strip().split("."))
        if not equals or not all(str(step) for step in path):
            refuse(source, word, f"an override reads key=value, got {word!r}")
            continue
        try:
            value, raw, problems = read_value(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            refuse(source, word, f"the value of {key} is not YAML, got {text!r}")
            continue
        except TooLargeError:
            refuse(source, word, f"the aliases in the value of {key} unfold to more than {MAX_VALUES} values")
            continue
        for found in problems:
            inner = ".".join(filter(None, (key.strip(), found.key)))
            message = found.message.partition(", first in line")[0]  # a word has no lines
            source.problems.append(replace(found, line=NOWHERE.line, column=NOWHERE.column, key=inner, message=message))
        if not put(source.data, path, value):
            refuse(source, word, f"there is no place called {key}")
            continue
        source.overridden.add(path)
        source.raw.pop(path, None)
        source.raw |= {path + inner: written for inner, written in raw.items()}


def read_value(text: str) -> tuple[Any, dict[Path, str], list[Problem]]:
    """A YAML value by the same rules as the file's (None for nothing), its numbers as written, what is wrong in it."""
    node = yaml.compose(text, Loader=Loader)
    source = Source(COMMAND_LINE, text)
    value = None if node is None else Reader(source).value(node, ())
    return value, source.raw, source.problems


def put(data: Any, path: Path, value: Any) -> bool:
    """Set `value` at `path`, making mappings on the way.

    Returns:
        False when a list has no such item, or something that is no mapping is in the way.
    """
    *parents, last = path
    for depth, step in enumerate(parents):
        if isinstance(data, list):
            if not isinstance(step, int) or step > len(data):
                return False
            if step == len(data):
                data.append({})
            data = data[step]
        elif isinstance(data, dict):
            following = path[depth + 1]
            if data.get(str(step)) is None:
                data[str(step)] = [] if isinstance(following, int) else {}
            data = data[str(step)]
        else:
            return False
    if isinstance(data, list):
        if not isinstance(last, int) or last > len(data):
            return False
        data[last : last + 1] = [value]
        return True
    if isinstance(data, dict):
        data[str(last)] = value
        return True
    return False


def refuse(source: Source, word: str, message: str) -> None:
    """Note an override that cannot be used."""
    key = word.partition("=")[0]
    help = "write key=value, with dots for deeper keys, such as datasets.0.path=my.jsonl"
    source.problems.append(Problem("error", COMMAND_LINE, NOWHERE.line, NOWHERE.column, key, "override", message, help))
