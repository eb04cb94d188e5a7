"""Rows of a JSON file, with their line numbers and exactly the types that the file gives them.

Told apart by content, never by the file's name: an array of objects, one object a line, or objects one after another
over several lines. Read here and not by a table reader, because a table column has one type: one numeric value would
turn every `"007"` of the column into 7.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftkit.data.values import Row, Where
from ftkit.errors import DataError

BOM = b"\xef\xbb\xbf"
BLANK = " \t\r\n"


def json_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the objects of `path` in order.

    Args:
        name: the file as the recipe names it, for messages.

    Raises:
        DataError: bytes that are no UTF-8, text that is no JSON, or a row that is no object; with the line.
    """
    if _is_lines(path):
        yield from _lines(path, name)
    else:
        yield from _whole(decode(path.read_bytes().removeprefix(BOM), name, 1), name)


def count_lines(path: Path) -> int | None:
    """Lines of a file with one object a line (a blank one counts); None for other forms."""
    if not _is_lines(path):
        return None
    count, last = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last not in (b"", b"\n"))


def decode(raw: bytes, name: str, line: int) -> str:
    """`raw` as UTF-8.

    Args:
        line: number of the first line in `raw`.
    """
    try:
        return raw.decode("utf8")
    except UnicodeDecodeError as bad:
        newlines = raw.count(b"\n", 0, bad.start)
        raise DataError(
            f"not UTF-8 text, got byte {raw[bad.start]:#04x}",
            where=f"{name}:{line + newlines}",
            help="save the file as UTF-8",
        ) from None


def _is_lines(path: Path) -> bool:
    """Whether the first line that is not blank is an object by itself."""
    with path.open("rb") as file:
        for raw in file:
            text = raw.removeprefix(BOM).strip()
            if text:
                return text.startswith(b"{") and text.endswith(b"}") and _parses(text)
    return True


def _parses(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:  # an object by itself, which its reader will refuse
        return True
    return True


def _lines(path: Path, name: str) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            text = decode(raw.removeprefix(BOM) if number == 1 else raw, name, number)
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as bad:
                raise _broken(bad, Where(name, number)) from None
            yield _row(value, Where(name, number))


def _whole(text: str, name: str) -> Iterator[Row]:
    """Objects of one array, or one after another, however they are broken into lines."""
    decoder = json.JSONDecoder()
    position = _skip(text, 0)
    in_array = text.startswith("[", position)
    position = _skip(text, position + in_array)
    line, counted = 1, 0
    while position < len(text) and not (in_array and text.startswith("]", position)):
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as bad:
            raise _broken(bad, Where(name, getattr(bad, "lineno", line))) from None
        yield _row(value, Where(name, line))
        position = _skip(text, position)
        if in_array and text.startswith(",", position):
            position = _skip(text, position + 1)
        elif in_array and not text.startswith("]", position):
            line += text.count("\n", counted, position)
            raise _broken(ValueError("expected ',' or ']' after a row"), Where(name, line))


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in BLANK:
        position += 1
    return position


def _row(value: Any, where: Where) -> Row:
    if not isinstance(value, dict):
        raise DataError(
            f"a row must be a JSON object, got {_kind(value)}",
            where=str(where),
            help='write one object a line, or one array of objects: [{"...": ...}, ...]',
        )
    return Row(value, where)


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def _broken(bad: Exception, where: Where) -> DataError:
    what = f"not JSON: {bad.msg if isinstance(bad, json.JSONDecodeError) else bad}"
    if isinstance(bad, RecursionError):
        what = "JSON nested too deep to be read"
    return DataError(what, where=str(where), help="mend this line of the file")
