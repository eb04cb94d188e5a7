"""What can be wrong with a recipe, as values: found all at once, each with its place, and shown in one style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ftkit.errors import RecipeError

Severity = Literal["error", "warning", "note"]
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place: 1-based line and column of the recipe's file; both 0 for the command line or the whole file."""

    line: int
    column: int


NOWHERE = Mark(0, 0)


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding.

    Args:
        file: the recipe's path as given, or `command line`.
        key: dotted path of the key, empty for the file as a whole.
        code: stable name of the kind of finding.
        help: what to do; may be empty.
    """

    severity: Severity
    file: str
    line: int
    column: int
    key: str
    code: str
    message: str
    help: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        text = f"{place}: {self.message}"
        return f"{text}\nhelp: {self.help}" if self.help else text


class InvalidRecipe(RecipeError):  # noqa: N818 - the tree has RecipeError already
    """A recipe with at least one error; `problems` holds everything found, warnings and notes too."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        errors = [problem for problem in problems if problem.severity == "error"]
        Exception.__init__(self, "\n".join(map(str, errors)))
        self.what, self.where, self.help = "\n".join(map(str, errors)), None, None

    def __str__(self) -> str:
        return self.what
