"""Messages one a row, each with its parent's id, joined to trees.

`{"message_id": "b", "parent_id": "a", "text": ..., "role": "assistant"}`; other exports have `parent_message_id`.

An answer may stand anywhere in the file, before its question too, so all messages have to be read before the first tree
is whole. They wait in a database on disk, and one tree at a time is in memory.
"""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from ftkit.data.values import Row, Where
from ftkit.errors import DataError

PARENT_KEYS = ("parent_id", "parent_message_id")
ID_KEYS = ("message_id", "id", "user_message_id", "task_message_id")  # exports use one or the other

TABLES = """
CREATE TABLE messages (number INTEGER PRIMARY KEY, parent TEXT, file TEXT, line INTEGER, node BLOB);
CREATE TABLE ids (id TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID;
"""
INDEXES = """
CREATE INDEX by_parent ON messages (parent);
CREATE INDEX by_number ON ids (number);
"""
# Messages that answer none that is there: the first of a conversation, and those whose parent is missing.
FIRST = """
SELECT number, parent, file, line, node FROM messages
WHERE parent IS NULL OR parent NOT IN (SELECT id FROM ids) ORDER BY number
"""
ANSWERS = """
SELECT messages.number, node FROM ids JOIN messages ON messages.parent = ids.id
WHERE ids.number = ? ORDER BY messages.number
"""
IN_A_CIRCLE = """
WITH RECURSIVE reached (number) AS (
    SELECT number FROM messages WHERE parent IS NULL OR parent NOT IN (SELECT id FROM ids)
    UNION SELECT messages.number FROM reached JOIN ids USING (number) JOIN messages ON messages.parent = ids.id
)
SELECT file, line FROM messages WHERE number NOT IN (SELECT number FROM reached) ORDER BY number LIMIT 1
"""


def join_links(rows: Iterable[Row]) -> Iterator[Row]:
    """Trees from linked messages, each under the first message's line.

    Rows that are trees pass as they are; so does a message whose parent is not there, for the format to refuse.

    Raises:
        DataError: messages answer one another in a circle.
    """
    with closing(sqlite3.connect("", isolation_level=None)) as database:  # on disk, unlinked, gone with the process
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + TABLES + "BEGIN;")
        for row in rows:
            if "replies" not in row.values and any(key in row.values for key in PARENT_KEYS):
                _put(database, row)
            else:
                yield row
        database.executescript(INDEXES)
        circle = database.execute(IN_A_CIRCLE).fetchone()
        if circle:
            raise DataError(
                "the message answers one that answers it, so it belongs to no conversation",
                where=str(Where(*circle)),
                help="mend its parent's id; that of a first message is null",
            )
        for number, parent, file, line, node in database.execute(FIRST):
            values = pickle.loads(node)
            yield Row(_tree(database, number, values) if parent is None else values, Where(file, line))


def _put(database: sqlite3.Connection, row: Row) -> None:
    parent = next((row.values[key] for key in PARENT_KEYS if row.values.get(key) is not None), None)
    message = (None if parent is None else str(parent), row.where.file, row.where.line, pickle.dumps(dict(row.values)))
    number = database.execute("INSERT INTO messages (parent, file, line, node) VALUES (?, ?, ?, ?)", message).lastrowid
    ids = [(row.values[key], number) for key in ID_KEYS if isinstance(row.values.get(key), str)]
    database.executemany("INSERT OR REPLACE INTO ids VALUES (?, ?)", ids)


def _tree(database: sqlite3.Connection, number: int, values: dict[str, Any]) -> dict[str, Any]:
    """The message with its answers and theirs, each under `replies` in the order of the rows."""
    root = values | {"replies": []}
    waiting = [(number, root)]
    while waiting:
        number, node = waiting.pop()
        for answer, blob in database.execute(ANSWERS, (number,)).fetchall():
            reply = pickle.loads(blob) | {"replies": []}
            node["replies"].append(reply)
            waiting.append((answer, reply))
    return root
