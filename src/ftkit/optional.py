"""Import a package that is not a core dependency, or say how to install it."""

from __future__ import annotations

import importlib
from types import ModuleType

from ftkit.errors import FtkitError


def need(module: str, *, extra: str, purpose: str, error: type[FtkitError]) -> ModuleType:
    """Return the imported `module`, whose package comes with ftkit's extra `extra`.

    Args:
        module: dotted name, such as `deepspeed`.
        purpose: the recipe line or command that wants it, for the message.
        error: which branch of the exception tree the caller stands on.

    Raises:
        FtkitError: of class `error`, with the pip line, when the package is absent.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as absent:
        if absent.name is None or absent.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there, something it needs is not: its own message says more
        raise error(
            f"{purpose} needs the package {module.split('.')[0]}, which is not installed",
            help=f'pip install "ftkit[{extra}]"',
        ) from None
