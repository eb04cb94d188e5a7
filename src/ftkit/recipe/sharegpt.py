"""`type: sharegpt` in today's words: `chat_template` with ShareGPT's names of columns; `conversation` as well."""

from __future__ import annotations

from typing import Any

from ftkit.recipe.edits import change, remove, rename
from ftkit.recipe.migrations import dataset_entries, moved, templates
from ftkit.recipe.source import Path, Source

TURN_KEYS = {"role": "from", "content": "value"}


def normalise_sharegpt(source: Source) -> None:
    """Bring data sets of turns into today's form; rows are read exactly as before."""
    for path, entry in dataset_entries(source):
        if entry.get("type") == "sharegpt":
            change(source, (*path, "type"), "chat_template")
            if entry.get("field_messages") is None:
                change(source, (*path, "field_messages"), "conversations", cause=(*path, "type"))
            turn_keys(source, path, entry)
            moved(source, (*path, "type"), "type sharegpt is `chat_template` with the columns named")
        if entry.get("conversation") is not None and entry.get("type") == "chat_template":
            conversation(source, path, entry)
    templates(source)


def turn_keys(source: Source, path: Path, entry: dict[str, Any]) -> None:
    """Name the keys of a turn, unless the recipe does."""
    given = entry.get("message_property_mappings") or {}
    for ours, theirs in TURN_KEYS.items():
        if entry.get(f"message_field_{ours}") is None and isinstance(given, dict) and given.get(ours) is None:
            change(source, (*path, "message_property_mappings", ours), theirs, cause=(*path, "type"))


def conversation(source: Source, path: Path, entry: dict[str, Any]) -> None:
    """`conversation` named the chat template of one data set; it came before any other."""
    old, new = (*path, "conversation"), (*path, "chat_template")
    if entry.get("chat_template") is not None and entry["chat_template"] != entry["conversation"]:
        remove(source, new)
    if rename(source, old, new):
        moved(source, old, "`conversation` is now called `chat_template`")
