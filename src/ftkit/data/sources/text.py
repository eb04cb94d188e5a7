"""Bytes of a file as text: UTF-8, whatever the locale, with the line of a byte that is none."""

from __future__ import annotations

from ftkit.errors import DataError

BOM = b"\xef\xbb\xbf"


def decode(raw: bytes, name: str, line: int) -> str:
    """`raw` as UTF-8.

    Args:
        line: number of the first line in `raw`.

    Raises:
        DataError: it is none.
    """
    try:
        return raw.decode("utf8")
    except UnicodeDecodeError as bad:
        raise not_utf8(bad, name, line) from None


def not_utf8(bad: UnicodeDecodeError, name: str, line: int) -> DataError:
    """The error for bytes that begin in `line` of the file `name`."""
    newlines = bad.object.count(b"\n", 0, bad.start)
    return DataError(
        f"not UTF-8 text, got byte {bad.object[bad.start]:#04x}",
        where=f"{name}:{line + newlines}",
        help="save the file as UTF-8",
    )
