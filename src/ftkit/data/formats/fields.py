"""Reading one field of a row, with an error that names the row when it is not what it must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftkit.data.values import Conversation, Row, Segments, Tokens
from ftkit.errors import DataError

Formatter = Callable[[Row], Conversation | Segments | Tokens]

# Columns by which a row gives away its format, the most telling first.
TELLING = (
    ("messages", "chat_template"),
    ("conversations", "sharegpt"),
    ("conversation", "sharegpt"),
    ("segments", "input_output"),
    ("input_ids", "pretokenized"),
    ("replies", "oasst"),
    ("parent_id", "oasst"),
    ("parent_message_id", "oasst"),
    ("query", "query_response"),
    ("corrected", "reflection"),
    ("instruction", "alpaca"),
    ("text", "completion"),
)
MOST_SHOWN = 12  # columns in a message


def text_field(row: Row, name: str, *, optional: bool = False) -> str:
    """The text in column `name`; with `optional`, empty where it is missing or null.

    Raises:
        DataError: the column is missing, null or no text.
    """
    if name not in row.values:
        if optional:
            return ""
        raise missing_column(row, name)
    value = row.values[name]
    if value is None and optional:
        return ""
    return as_text(value, f"column {name!r}", row)


def as_text(value: Any, what: str, row: Row) -> str:
    """`value` if it is text that can be encoded.

    Args:
        what: how the message names the value.
    """
    if value is None:
        raise DataError(
            f"{what} must be text, got null",
            where=str(row.where),
            help="fill it in, remove the row, or set bad_rows: skip",
        )
    if not isinstance(value, str):
        raise DataError(
            f"{what} must be text, got {_show(value)}",
            where=str(row.where),
            help="put the value in quotes, remove the row, or set bad_rows: skip",
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as bad:
            raise DataError(
                f"{what} holds half of a surrogate pair, got {value[bad.start]!r}",
                where=str(row.where),
                help="mend the character, remove the row, or set bad_rows: skip",
            ) from None
    return value


def missing_column(row: Row, name: str) -> DataError:
    """The error for an absent column: with the type the row looks like, or what the file holds instead of rows."""
    values, where = row.values, row.where
    save = f"{where.file} > {Path(where.file).stem}_rows.jsonl"
    if len(values) > 1 and all(isinstance(value, Mapping) and value for value in values.values()):
        what = f"the file is one object of {len(values):,} named rows, not a list of rows"
        return DataError(what, where=str(where), help=f"write its rows one a line: jq -c '.[]' {save}")
    column, type_ = likely_type(row)
    found = columns_of(row)
    help_ = f"name the column in this data set's entry (the row has: {found})"
    if type_:
        help_ = f"the row has {column!r}: did you mean type: {type_}? All its columns: {found}"
    elif (inner := _objects_within(row)) is not None:
        column, first, num = inner
        turns = "chat_template" if "role" in first else "sharegpt" if "from" in first else ""
        help_ = f"column {column!r} holds {num:,} rows; write them one a line: jq -c '.{column}[]' {save}"
        if turns:
            help_ = f"column {column!r} holds turns: type: {turns}, field_messages: {column}"
    elif len(values) == 1 and isinstance(values[found], str):
        help_ = f"the row has {found!r} alone; to train on that text: type: completion, field: {found}"
    return DataError(f"the row has no column {name!r}", where=str(where), help=help_)


def _objects_within(row: Row) -> tuple[str, Mapping[str, Any], int] | None:
    """The first column that holds a list of turns or rows: its name, the first of them, and how many there are."""
    for column, value in row.values.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            first = value[0]
            if "role" in first or "from" in first or likely_type(Row(first, row.where))[1]:
                return column, first, len(value)
    return None


def columns_of(row: Row) -> str:
    """The names of a row's columns, for a message."""
    shown = ", ".join(list(row.values)[:MOST_SHOWN]) or "none"
    return shown if len(row.values) <= MOST_SHOWN else f"{shown} and {len(row.values) - MOST_SHOWN:,} more"


def likely_type(row: Row) -> tuple[str, str]:
    """The column that tells a row's format, and the type; empty if none tells."""
    return next(((column, type_) for column, type_ in TELLING if column in row.values), ("", ""))


def mapping_field(value: Any, what: str, row: Row) -> Mapping[str, Any]:
    """`value` if it is an object."""
    if not isinstance(value, Mapping):
        raise DataError(
            f"{what} must be an object, got {_show(value)}",
            where=str(row.where),
            help="mend or remove the row, or set bad_rows: skip",
        )
    return value


def list_field(value: Any, what: str, row: Row) -> list[Any]:
    """`value` if it is a list that is not empty."""
    if not isinstance(value, list | tuple) or not value:
        shown = "an empty list" if isinstance(value, list | tuple) else _show(value)
        raise DataError(
            f"{what} must be a list with at least one entry, got {shown}",
            where=str(row.where),
            help="mend or remove the row, or set bad_rows: skip",
        )
    return list(value)


def _show(value: Any) -> str:
    if value is None:
        return "null"
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 40 else shown[:37] + '...'}"
