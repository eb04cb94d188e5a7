"""JSON values of a file one after another, in an array or not, holding little more than the value in work.

The file is read a piece at a time. A value that the pieces so far do not hold whole makes the parser fail at their end;
then as much again is read and the value is parsed anew, which costs twice a single pass at worst. A failure anywhere
else is the file's own: what is broken is said at once and not when all the rest has been read.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ftkit.data.sources.text import BOM, not_utf8

BLANK = " \t\r\n"
PIECE_BYTES = 1 << 18
LONGEST_WORD = len("-Infinity")  # a literal, number or escape cut by the end of a piece is refused at its beginning
_DECODER = json.JSONDecoder()


def json_values(file: BinaryIO, name: str, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[Any, int]]:
    """Yield each value of `file`, opened at its beginning, with the line it begins in (from 1).

    Args:
        piece_bytes: read at once, or as much as there is of a longer value.

    Raises:
        DataError: bytes that are no UTF-8.
        BrokenJsonError: text that is no JSON.
    """
    if file.read(len(BOM)) != BOM:
        file.seek(0)
    text = _Pieces(file, name, piece_bytes)
    in_array = text.take("[")
    while text.peek() not in ("]" if in_array else "", ""):
        line = text.line
        yield text.value(), line
        if in_array and not text.take(",") and text.peek() != "]":
            raise text.broken("expected ',' or ']' after a row")
    if in_array:
        if not text.take("]"):
            raise text.broken("the file ends within its array")
        if text.peek():
            raise text.broken("there is more behind the array")


class BrokenJsonError(Exception):
    """Text that is no JSON: what is wrong and in which line."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.what, self.line = what, line


@dataclass
class _Pieces:
    """The text of a file from the position in work on; what lies before it is dropped when more is read."""

    file: BinaryIO
    name: str
    piece_bytes: int
    text: str = ""
    position: int = 0
    _line: int = 1
    _counted: int = 0  # up to here the line breaks in `text` are in `_line`
    _breaks: int = 0  # in all that was read
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf8")())

    @property
    def line(self) -> int:
        """The line of the position."""
        self._line += self.text.count("\n", self._counted, self.position)
        self._counted = self.position
        return self._line

    def peek(self) -> str:
        """The next character that is not blank, where the position then is; empty at the end of the file."""
        while True:
            while self.position < len(self.text) and self.text[self.position] in BLANK:
                self.position += 1
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.more():
                return ""

    def take(self, character: str) -> bool:
        """Whether `character` comes next, and step over it."""
        found = self.peek() == character
        self.position += found
        return found

    def value(self) -> Any:
        """The value at the position, and step over it."""
        while True:
            try:
                value, self.position = _DECODER.raw_decode(self.text, self.position)
            except json.JSONDecodeError as bad:
                is_cut = bad.msg.startswith("Unterminated string") or bad.pos > len(self.text.rstrip()) - LONGEST_WORD
                if is_cut and self.more():
                    continue
                line = self.line + self.text.count("\n", self.position, bad.pos)
                raise BrokenJsonError(f"not JSON: {bad.msg}", line) from None
            except RecursionError:
                raise BrokenJsonError("JSON nested too deep to be read", self.line) from None
            except ValueError as bad:  # a number of more digits than Python turns into one
                raise self.broken(str(bad)) from None
            return value

    def broken(self, what: str) -> BrokenJsonError:
        """The error at the position."""
        return BrokenJsonError(f"not JSON: {what}", self.line)

    def more(self) -> bool:
        """Read the next piece; False, and nothing else, at the end of the file."""
        raw = self.file.read(max(self.piece_bytes, len(self.text) - self.position))
        try:
            piece = self._decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as bad:
            raise not_utf8(bad, self.name, 1 + self._breaks) from None
        if not raw:
            return False
        self._line, self._counted = self.line, 0
        self.text, self.position = self.text[self.position :] + piece, 0
        self._breaks += piece.count("\n")
        return True
