"""A prepared document as a person sees it: its tokens with their labels, and the packs of a step as bars.

Text for a terminal (colours, or plain marks where there are none) and for a page of HTML that needs nothing else.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
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


def as_html(
    title: str,
    facts: Sequence[tuple[str, Mapping[str, str]]],
    documents: Sequence[tuple[str, Sequence[Piece]]],
    packs: Sequence[Sequence[int]],
    capacity: int,
) -> str:
    """A page with the mask report, the documents, and the packs of one step.

    Args:
        facts: heading and table of each data set.
        documents: heading and pieces of each document.
        packs: lengths of the documents of each pack.
    """
    body = [f"<h1>{escape(title)}</h1>"]
    for heading, table in facts:
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in table.items())
        body.append(f"<h2>{escape(heading)}</h2><table>{rows}</table>")
    body.append('<p><span class="t">trained</span> <span>not trained</span> <span class="s">special token</span></p>')
    for heading, pieces in documents:
        body.append(f"<h2>{escape(heading)}</h2><pre>{''.join(map(_span, pieces))}</pre>")
    body.append(f"<h2>Packs of the first step, of {capacity:,} tokens</h2>")
    body += [_html_bar(lengths, capacity) for lengths in packs]
    return PAGE.format(title=escape(title), body="\n".join(body))


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: 1em; color: #666; }}
th {{ text-align: left; padding-right: 2em; font-weight: 600; vertical-align: top; }}
.t {{ background: #c5f0c5; color: #063; }} .s {{ font-weight: 700; border: 1px solid #999; border-radius: 3px; }}
.bar {{ display: flex; height: 1.2em; background: #eee; margin: 3px 0; }}
.bar i {{ background: #58a; border-right: 1px solid #fff; box-sizing: border-box; }} .bar i:nth-child(even) {{ background: #8bd; }}
</style>
<body>
{body}
</body></html>
"""  # noqa: E501


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


def _span(piece: Piece) -> str:
    look = " ".join(name for name, holds in (("t", piece.is_trained), ("s", piece.is_special)) if holds)
    text = escape(piece.text).replace("\n", "↵\n")
    return f'<span class="{look}" title="{" ".join(map(str, piece.ids))}">{text}</span>'


def _html_bar(lengths: Sequence[int], capacity: int) -> str:
    whole = max(capacity, sum(lengths))
    documents = "".join(
        f'<i style="width:{100 * length / whole:.3f}%" title="{length} tokens"></i>' for length in lengths
    )
    return f'<div class="bar" title="{sum(lengths)} of {capacity} tokens">{documents}</div>'
