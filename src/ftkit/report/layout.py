"""Text for a screen or a log file: plain functions, no colours, no stream."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence


def hanging(name: str, value: str, indent: int, width: int) -> list[str]:
    """Lines of a name and its value, the value's further lines under its first.

    Words are not broken: a path or a command can be copied even where it is longer than the line.
    """
    lines: list[str] = []
    for paragraph in value.split("\n"):
        wrapped = textwrap.wrap(paragraph, max(width - indent, 20), break_long_words=False, break_on_hyphens=False)
        lines += wrapped or [""]
    first, *rest = lines
    return [f"{name:<{indent}}{first}".rstrip(), *(" " * indent + line for line in rest)]


def fit(parts: Sequence[str], width: int) -> str:
    """As many of `parts`, from the first, as go into one line of `width` characters; two spaces between."""
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += "  " + part
    return line[:width]


def clock(seconds: float) -> str:
    """Seconds as m:ss, h:mm:ss or d days h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable(text: str, encoding: str) -> str:
    """`text` as a stream of `encoding` can take it: `?` for what it has no letter for, and for control characters.

    What a model answers may hold escape sequences that would move the cursor or rename the window.
    """
    text = "".join("?" if unicodedata.category(letter) == "Cc" and letter != "\n" else letter for letter in text)
    return text.encode(encoding, errors="replace").decode(encoding)
