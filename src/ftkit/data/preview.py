"""A prepared document as a person sees it: its tokens with their labels, and the packs of a step as bars.

Here for a terminal: colours, or plain marks where there are none. The page of HTML is in `preview_page.py`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ftkit.data.values import IGNORED, Example

GREEN, DIM, BOLD, PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
LONGEST_CHARACTER = 8  # tokens of one character or emoji: more is broken text, not a long character


@dataclass(frozen=True, slots=True)
class Piece:
    """One token, or the few that make up one character, with the text they stand for."""

    text: str
    ids: tuple[int, ...]
    is_trained: bool
    is_special: bool


@dataclass(frozen=True, slots=True)
class Style:
    """How a stream shows labels.

    Args:
        colour: by ANSI colours; else by marks around what is trained.
        unicode: the stream takes letters beyond ASCII.
    """

    colour: bool
    unicode: bool

    @property
    def marks(self) -> tuple[str, str]:
        """What stands around trained text."""
        if self.colour:
            return "", ""
        return ("⟦", "⟧") if self.unicode else ("[[", "]]")

    @property
    def line_end(self) -> str:
        """What shows a line break of the text."""
        return "↵\n" if self.unicode else "\\n\n"

    @property
    def cells(self) -> tuple[str, str, str]:
        """Two looks of documents in a bar, and that of nothing."""
        return ("█", "▒", "·") if self.unicode else ("#", "=", ".")


def pieces_of(example: Example, tokenizer: Any) -> list[Piece]:
    """The document's tokens as text, special ones visible.

    Text is that of the tokenizer's own decoder; a token that holds a part of a character is joined with the next.
    """
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    trained = (example.labels != IGNORED).tolist()
    pieces, held = [], list[int]()
    for position, token in enumerate(example.input_ids.tolist()):
        held.append(token)
        text = _text(held, tokenizer)
        is_last = position == len(trained) - 1
        whole = is_last or token in special or "\ufffd" not in text or len(held) >= LONGEST_CHARACTER
        if whole or trained[position + 1] != trained[position]:
            pieces.append(Piece(text, tuple(held), trained[position], token in special))
            held = []
    return pieces


def as_text(pieces: Sequence[Piece], style: Style) -> str:
    """The document for a terminal or a file."""
    opening, closing = style.marks
    shown = []
    for is_trained, group in groupby(pieces, key=lambda piece: piece.is_trained):
        looks = groupby(group, key=lambda piece: piece.is_special)
        inner = "".join(
            _coloured("".join(piece.text for piece in same), style, is_trained=is_trained, is_special=is_special)
            for is_special, same in looks
        )
        shown.append(f"{opening}{inner}{closing}" if is_trained else inner)
    return "".join(shown)


def legend(style: Style) -> str:
    """What the colours or marks mean."""
    if style.colour:
        return f"{GREEN}trained{PLAIN}  {DIM}not trained{PLAIN}  {BOLD}special token{PLAIN}"
    return f"{style.marks[0]}trained{style.marks[1]}  not trained"


def bar(lengths: Sequence[int], capacity: int, width: int, style: Style) -> str:
    """One pack: its documents side by side, `width` characters for `capacity` tokens."""
    borders = np.cumsum(lengths)
    positions = (np.arange(width) + 0.5) * max(capacity, int(borders[-1])) / width
    documents = np.searchsorted(borders, positions, side="right").tolist()
    odd, even, nothing = style.cells
    return "".join(nothing if n >= len(lengths) else (odd, even)[n % 2] for n in documents)


def _text(ids: list[int], tokenizer: Any) -> str:
    """Decoded, with the space in front that a sentencepiece decoder takes away."""
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    first = tokenizer.convert_ids_to_tokens(ids[0]) or ""
    return f" {text}" if first.startswith("▁") and not text.startswith(" ") else text


def _coloured(text: str, style: Style, *, is_trained: bool, is_special: bool) -> str:
    """Text in its colour, which ends with every line: pagers forget it there."""
    text = _printable(text, style)
    if not style.colour:
        return text
    look = (GREEN if is_trained else DIM) + (BOLD if is_special else "")
    return "\n".join(f"{look}{line}{PLAIN}" if line else "" for line in text.split("\n"))


def _printable(text: str, style: Style) -> str:
    """Line breaks visible, and nothing that would move a cursor."""
    shown = "".join("?" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)
    shown = shown if style.unicode else shown.encode("ascii", "backslashreplace").decode()
    return shown.replace("\n", style.line_end)
