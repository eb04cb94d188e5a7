"""A recipe with every key written out, and where each value comes from: what `ftkit check --effective` prints."""

from __future__ import annotations

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
    text = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, width=1000)
    lines = text.rstrip("\n").split("\n")
    if len(lines) == 1:
        return f"{lines[0]}  # {origin}\n"
    return f"# {key}: {origin}\n{text}"
