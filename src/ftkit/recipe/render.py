"""A problem as people read it: severity and code, what, where, the line with a mark under the place, what to do.

The style is that of compilers: `error[warmup-twice]: ...`, `--> recipe.yml:12:15`, the line, `help: ...`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftkit.recipe.problems import Problem

COLOURS = {
    "error": "\033[1;31m",
    "warning": "\033[1;33m",
    "note": "\033[1;36m",
    "dim": "\033[1;34m",
    "help": "\033[1;32m",
}
RESET = "\033[0m"
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'')
PLAIN = re.compile(r"(?:(?!:(?:\s|$)|\s#).)+")  # to the colon after a key, to a comment, or to the end of the line
IN_LIST = re.compile(r"[^\s,\[\]{}]+")
WIDEST = 110  # columns of a recipe's line that are shown


def render(problem: Problem, text: str, *, colour: bool = False) -> str:
    """A problem in several lines, no newline at the end; `text` is the recipe's file, for the lines around it."""
    head = f"{problem.severity}[{problem.code}]"
    lines = [f"{paint(head, problem.severity, colour)}: {problem.message}"]
    lines += excerpt(problem, text.splitlines(), colour=colour)
    if problem.help:
        lines.append(f"{paint('help', 'help', colour)}: {problem.help}")
    return "\n".join(lines)


def excerpt(problem: Problem, lines: Sequence[str], *, colour: bool) -> list[str]:
    """The place, and where it is in the file also the line above and the line itself with a mark."""
    if not 0 < problem.line <= len(lines):
        return [f"  --> {problem.file}"]
    width = len(str(problem.line))
    bar = paint("|", "dim", colour)
    shown = [f"{' ' * width}--> {problem.file}:{problem.line}:{problem.column}", f"{' ' * width} {bar}"]
    for number in range(max(1, problem.line - 1), problem.line + 1):
        shown.append(f"{paint(str(number).rjust(width), 'dim', colour)} {bar} {plain(lines[number - 1])}".rstrip())
    if problem.column <= WIDEST:
        mark = paint("^" * marked(lines[problem.line - 1], problem.column), problem.severity, colour)
        shown.append(f"{' ' * width} {bar} {' ' * (problem.column - 1)}{mark}")
    return shown


def marked(line: str, column: int) -> int:
    """How many letters of `line` the mark covers: the word or quoted text that begins at `column`."""
    word = IN_LIST if re.search(r"[\[{]", line[: column - 1]) else PLAIN
    if line[column - 1 : column].isspace():
        return 1
    found = QUOTED.match(line, column - 1) or word.match(line, column - 1)
    length = len(found.group().rstrip().rstrip(":")) if found else 1
    return max(1, min(length, WIDEST - column + 1))


def plain(line: str) -> str:
    """A line fit for a terminal: odd spaces and control characters as one space each, cut where it is very long."""
    return "".join(letter if letter.isprintable() else " " for letter in line[:WIDEST])


def paint(text: str, name: str, colour: bool) -> str:
    """`text` in a colour, or as it is."""
    return f"{COLOURS[name]}{text}{RESET}" if colour else text
