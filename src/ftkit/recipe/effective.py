"""A recipe with every key written out, and where each value comes from: what `ftkit check --effective` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from ftkit.recipe.recipe import Recipe


def effective_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML, one top-level key after the other, each with its origin as a comment.

    Keys that nothing was said about carry their default. The text loads back to an equal recipe.
    """
    return "".join(entry(key, value, recipe.origins.get(key, "default")) for key, value in recipe.as_keys().items())


def entry(key: str, value: Any, origin: str) -> str:
    """One key: the comment stands behind a value of one line, and above a longer one."""
    readable = all(map(is_ordinary, texts(value)))
    text = yaml.dump({key: value}, Dumper=Dumper, sort_keys=False, allow_unicode=readable, width=1000)
    lines = text.rstrip("\n").split("\n")
    if len(lines) == 1:
        return f"{lines[0]}  # {origin}\n"
    return f"# {key}: {origin}\n{text}"


class Dumper(yaml.SafeDumper):
    """Writes text that a page or an editor may change, such as invisible characters, in double quotes and escaped."""


def represent_text(dumper: Dumper, text: str) -> yaml.ScalarNode:
    """A scalar, in double quotes if anything in it cannot be seen."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_ordinary(text) else '"')


Dumper.add_representer(str, represent_text)


def is_ordinary(text: str) -> bool:
    """Whether every character of a text can be seen, line ends and plain spaces apart, and none is a code fence."""
    return text.replace("\n", "").isprintable() and "```" not in text and "~~~" not in text


def texts(value: Any) -> Iterator[str]:
    """Every text in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from texts(list(pair))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)
