"""Text copied from a web page -> the YAML it was meant to be.

Spaces of other widths, invisible characters, tabs and a code fence around the whole are made plain without moving any
line, and only where they are YAML's own writing: what stands in quotes, in a block scalar or in a comment is a person's
text and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator

# Spaces of other widths that web pages put where a plain one was typed; one character each, so columns stay right.
ODD = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
HIDDEN = "\ufeff\u200b\u2060"
# Where a space is part of YAML's own writing, not of a value: at either end of a line, after `:` and `-`, before `#`.
AROUND = r"(?m)^\s+|(?<=[:-])[^\S\n]+|[^\S\n]+(?=#|$)"
TABS = r"(?m)(?<=[:\-,\[{])[ \t]+|[ \t]+(?=#|$)"
FENCES = "```", "~~~"
FENCE = r"(```|~~~)\s*(ya?ml)?"
GAP = rf"[ \t{ODD}{HIDDEN}]+"
QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
BLOCK = re.compile(rf"[|>]([-+]?[1-9]?[-+]?)[ \t{ODD}{HIDDEN}]*(?:#.*)?(?:\n|\Z)")
PART = re.compile(
    rf"(?P<line>\n)|(?P<gap>{GAP})|(?P<item>[-?](?=[\s{HIDDEN}]|\Z))|(?P<colon>:)|(?P<tag>[&!*][^\s,\]}}]+)"
    rf"|(?P<mark>[\[\]{{}},#'\"|>])|(?P<word>[^\s{ODD}{HIDDEN}:\[\]{{}},#'\"|>]+)|(?P<other>.)",
    re.DOTALL,
)


def clean(text: str) -> str:
    """Put plain characters where pasting left odd ones; odd spaces inside values stay."""
    text = bare(text)
    if text.isascii():
        return text
    return outside(text, lambda part: re.sub(f"[{HIDDEN}]", "", re.sub(AROUND, plain, part)))


def without_tabs(text: str) -> str:
    """Put spaces for the tabs between keys, values and comments."""
    return outside(text, lambda part: re.sub(TABS, lambda tabs: " " * len(tabs.group()), part))


def odd_space(text: str) -> tuple[str, int, int] | None:
    """The first odd space that `clean` makes plain, with its line and column."""
    text = bare(text)
    for start, end in writing(text):
        for around in re.finditer(AROUND, text[start:end]):
            found = re.search(f"[{ODD}]", around.group())
            if found:
                at = start + around.start() + found.start()
                return text[at], text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return None


def bare(text: str) -> str:
    """The text with plain line ends, and an empty line for each half of a code fence around the whole."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not any(fence in text for fence in FENCES):
        return text
    lines = text.split("\n")
    full = [number for number, line in enumerate(lines) if line.strip()]
    ends = full[0], full[-1]
    if len(full) > 1 and all(re.fullmatch(FENCE, re.sub(f"[{HIDDEN}]", "", lines[end]).strip()) for end in ends):
        lines[ends[0]] = lines[ends[1]] = ""
    return "\n".join(lines)


def plain(spaces: re.Match[str]) -> str:
    """The same number of plain spaces."""
    return re.sub(f"[{ODD}]", " ", spaces.group())


def outside(text: str, change: Callable[[str], str]) -> str:
    """The text with every stretch of YAML's own writing changed."""
    done, parts = 0, []
    for start, end in writing(text):
        parts += [text[done:start], change(text[start:end])]
        done = end
    return "".join([*parts, text[done:]])


def writing(text: str) -> Iterator[tuple[int, int]]:
    """The stretches of a text that are neither quoted, nor in a block scalar, nor a comment.

    This is no YAML reader: it must find its way through text that is no YAML yet.
    """
    at = since = 0  # where we are, and where the stretch began
    fresh, spaced, depth = True, True, 0  # whether a value may begin here; whether a gap is behind; open brackets
    after_quote = False
    column = 0  # of the last key or list item that began in this line
    begun = False  # whether a key did
    line = 0  # where the line began
    tagged = -1  # where an anchor or tag before the key began
    while at < len(text):
        part = PART.match(text, at)
        assert part is not None
        kind, word, start = part.lastgroup, part.group(), at
        at, quote_behind, after_quote = part.end(), after_quote, False
        if kind == "line":
            fresh, spaced, line, column, begun = True, True, at, 0, False
            continue
        if kind == "gap":
            spaced, after_quote = True, quote_behind
            continue
        if fresh and not begun and not depth and kind == "tag":
            tagged = start if tagged < line else tagged
        elif fresh and not begun and not depth and word not in ("|", ">"):
            column, begun, tagged = (start if tagged < line else tagged) - line, kind != "item", -1
        if word == "#" and spaced:
            yield since, start
            at = since = end_of_line(text, at)
        elif word in ("'", '"') and fresh:
            yield since, start
            quoted = QUOTED.match(text, start)
            at = since = quoted.end() if quoted else len(text)
            fresh, after_quote = False, True
        elif word in ("|", ">") and fresh and not depth and BLOCK.match(text, start):
            header = BLOCK.match(text, start)
            assert header is not None
            yield since, header.end()
            at = since = yield from block(text, header.end(), column, re.sub(r"\D", "", header.group(1)))
            fresh, line, column, begun = True, at, 0, False
        elif kind == "colon":
            fresh = quote_behind or at == len(text) or re.match(rf"\n|{GAP}", text[at : at + 1]) is not None
        elif word in ("[", "{") and fresh:
            depth += 1
        elif word in ("]", "}") and depth:
            depth, fresh = depth - 1, False
        elif word == "," and depth:
            fresh = True
        elif kind not in ("item", "tag") or not fresh:
            fresh = False
        spaced = False
    yield since, len(text)


def block(text: str, at: int, parent: int, digit: str) -> Generator[tuple[int, int], None, int]:
    """The indentations of a block scalar's lines, below a key or item in column `parent`; its end."""
    indent = parent + int(digit) if digit else 0
    while at < len(text):
        end = end_of_line(text, at)
        blanks = re.match(rf"[ {ODD}{HIDDEN}]*", text[at:end])
        assert blanks is not None
        if text[at:end].strip():
            wide = [place for place, blank in enumerate(blanks.group(), 1) if not re.match(f"[{HIDDEN}]", blank)]
            usual = len(text[at:end]) - len(text[at:end].lstrip(" "))
            indent = indent or (usual if usual > parent else len(wide))
            if indent <= parent or len(wide) < indent:
                return at
            yield at, at + wide[indent - 1]
        at = min(end + 1, len(text))
    return at


def end_of_line(text: str, at: int) -> int:
    """Where the line that `at` is in ends."""
    end = text.find("\n", at)
    return len(text) if end < 0 else end
