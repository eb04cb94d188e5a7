"""The exceptions ftkit raises on purpose, and the exit code each one means.

    FtkitError                what a user may meet; never a bug
    |- RecipeError      (2)   the recipe or the command line
    |- DataError        (3)   rows, formats, chat templates, tokenizer
    |- ModelError       (4)   config, weights, adapters
    |- BackendError     (5)   devices, processes, a training step that cannot go on
    `- CheckpointError  (6)   saving, resuming, exporting

Any other exception is a bug in ftkit: it keeps its traceback and exits with 1.
A message reads `WHERE: WHAT, got VALUE` and a second line `help: DO THIS`.
"""

from __future__ import annotations

from typing import ClassVar


class FtkitError(Exception):
    """An error that names where it is, what it is and how to mend it.

    Args:
        what: one sentence without a full stop, ending in `got VALUE` where a value is at fault.
        where: `file:line:column` for YAML and rows, a parameter name for weights, `rank N` for devices.
        help: what to do, imperative.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str | None = None, help: str | None = None) -> None:
        self.what, self.where, self.help = what, where, help
        super().__init__(str(self))

    def __str__(self) -> str:
        first = f"{self.where}: {self.what}" if self.where else self.what
        return f"{first}\nhelp: {self.help}" if self.help else first


class RecipeError(FtkitError):
    """The recipe, or an override on the command line, cannot be used."""

    exit_code = 2


class DataError(FtkitError):
    """A data file, row, format, chat template or tokenizer cannot be used."""

    exit_code = 3


class ModelError(FtkitError):
    """A model's configuration, weights or adapter cannot be used."""

    exit_code = 4


class BackendError(FtkitError):
    """A device or process group cannot do what was asked, or a step went non-finite."""

    exit_code = 5


class CheckpointError(FtkitError):
    """A checkpoint or export cannot be written or read."""

    exit_code = 6
