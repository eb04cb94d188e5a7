"""Import a package that is not a core dependency, or say how to install it."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
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


def folder_of(module: str, *, extra: str, purpose: str, error: type[FtkitError]) -> Path:
    """Return the folder of an installed package without importing it, for packages that are wanted for their data.

    Raises:
        FtkitError: of class `error`, with the pip line, when the package is absent.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise error(
            f"{purpose} needs the package {module}, which is not installed", help=f'pip install "ftkit[{extra}]"'
        )
    return Path(spec.origin).parent
