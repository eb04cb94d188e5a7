"""`type: oasst`: an Open-Assistant tree, one a row, `{"text": ..., "role": "prompter", "replies": [...]}`.

Rows that are single messages with their parent's id are joined to trees first (`links.py`). Of every message's replies
the best ranked is followed (rank 0 first, then unranked ones in their order), so that a tree gives one conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftkit.data.formats.fields import Formatter, as_text, mapping_field
from ftkit.data.formats.links import PARENT_KEYS
from ftkit.data.formats.turns import ROLES
from ftkit.data.values import Conversation, Message, Row
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection


def build(dataset: DatasetSection) -> Formatter:
    """A formatter of trees of messages."""
    del dataset  # nothing about a tree can be configured

    def format_row(row: Row) -> Conversation:
        node: Mapping[str, Any] | None = mapping_field(row.values.get("prompt") or row.values, "the tree", row)
        if node is not None and "replies" not in node:
            if parent := next((node[key] for key in PARENT_KEYS if node.get(key)), None):
                raise DataError(
                    f"the message's parent is not among the rows, got {parent}",
                    where=str(row.where),
                    help="add the parent's row, remove the message and what answers it, or set bad_rows: skip",
                )
            raise DataError(
                "the row is no tree: it has no 'replies'",
                where=str(row.where),
                help="rows must be trees, or messages with parent_id; for lists of turns use type: sharegpt",
            )
        messages: list[Message] = []
        while node is not None:
            messages.append(_message(node, len(messages) + 1, row))
            node = _best(node.get("replies") or (), row)
        return Conversation(tuple(messages), row.where)

    return format_row


def _message(node: Mapping[str, Any], number: int, row: Row) -> Message:
    role = ROLES.get(str(node.get("role")))
    if role is None:
        raise DataError(
            f"message {number}: unknown role, got {node.get('role')!r}",
            where=str(row.where),
            help="roles of a tree are prompter and assistant",
        )
    return Message(role, as_text(node.get("text"), f"message {number}: 'text'", row))


def _best(replies: Any, row: Row) -> Mapping[str, Any] | None:
    nodes = [mapping_field(reply, "a reply", row) for reply in replies]
    ranked = sorted(nodes, key=lambda node: node["rank"] if isinstance(node.get("rank"), int) else len(nodes))
    return ranked[0] if ranked else None
