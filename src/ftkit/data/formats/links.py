"""Messages one a row, each with its parent's id, joined to trees.

`{"message_id": "b", "parent_id": "a", "text": ..., "role": "assistant"}`; other exports have `parent_message_id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ftkit.data.values import Row

PARENT_KEYS = ("parent_id", "parent_message_id")
ID_KEYS = ("message_id", "id", "user_message_id", "task_message_id")  # exports use one or the other


def join_links(rows: Iterable[Row]) -> Iterator[Row]:
    """Trees from linked messages, each under the first message's line.

    Rows that are trees pass as they are; so does a message whose parent is not there, for the format to refuse.
    """
    linked = list[Row]()
    for row in rows:
        if "replies" not in row.values and any(key in row.values for key in PARENT_KEYS):
            linked.append(row)
        else:
            yield row
    nodes: list[dict[str, Any]] = [{**row.values, "replies": []} for row in linked]
    by_id = {node[key]: node for node in nodes for key in ID_KEYS if isinstance(node.get(key), str)}
    roots = []
    for row, node in zip(linked, nodes, strict=True):
        parent = next((node[key] for key in PARENT_KEYS if node.get(key) is not None), None)
        if parent is None:
            roots.append(Row(node, row.where))
        elif parent in by_id:
            by_id[parent]["replies"].append(node)
        else:
            roots.append(row)
    yield from roots
