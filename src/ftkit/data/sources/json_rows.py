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

from ftkit.data.sources.json_values import BrokenJsonError, json_values
from ftkit.data.sources.text import BOM, decode
from ftkit.data.values import Row, Where
from ftkit.errors import DataError

LONGEST_FIRST_LINE = 1 << 22  # bytes; what is longer is read as values one after another, line breaks or not


def json_rows(path: Path, name: str) -> Iterator[Row]:
    """Yield the objects of `path` in order, holding one of them at a time.

    Args:
        name: the file as the recipe names it, for messages.

    Raises:
        DataError: bytes that are no UTF-8, text that is no JSON, or a row that is no object; with the line.
    """
    if _is_lines(path):
        yield from _lines(path, name)
        return
    with path.open("rb") as file:
        try:
            for value, line in json_values(file, name):
                yield _row(value, Where(name, line))
        except BrokenJsonError as bad:
            raise _broken(bad.what, Where(name, bad.line)) from None


def count_lines(path: Path) -> int | None:
    """Lines of a file with one object a line (a blank one counts); None for other forms."""
    if not _is_lines(path):
        return None
    count, last = 0, b""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last not in (b"", b"\n"))


def _is_lines(path: Path) -> bool:
    """Whether the first line that is not blank is an object by itself."""
    with path.open("rb") as file:
        while raw := file.readline(LONGEST_FIRST_LINE):
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
            except ValueError as bad:  # of the parser, or for a number of more digits than Python turns into one
                raise _broken(f"not JSON: {getattr(bad, 'msg', bad)}", Where(name, number)) from None
            except RecursionError:
                raise _broken("JSON nested too deep to be read", Where(name, number)) from None
            yield _row(value, Where(name, number))


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


def _broken(what: str, where: Where) -> DataError:
    return DataError(what, where=str(where), help="mend this line of the file")
