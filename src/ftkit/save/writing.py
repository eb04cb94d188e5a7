"""One error, with a way out, for what the system refuses to write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ftkit.errors import CheckpointError
from ftkit.parallel.shards import GO_ON


@contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Turn what the system says against writing below `folder` into a `CheckpointError`.

    The tokenizers library has no exception of its own for it: a bare `Exception` that ends in `(os error 28)`.

    Args:
        what: is being written, as the subject of a sentence.
    """
    try:
        yield
    except OSError as failed:
        where = str(failed.filename or folder)
        raise cannot_write(what, failed.strerror or str(failed), where) from failed
    except Exception as failed:
        number = re.search(r"\(os error (\d+)\)", str(failed)) if type(failed) is Exception else None
        if number is None:
            raise
        raise cannot_write(what, os.strerror(int(number[1])), str(folder)) from failed


def cannot_write(what: str, reason: str, where: str) -> CheckpointError:
    """The error."""
    return CheckpointError(f"{what} cannot be written, got {reason}", where=where, help=GO_ON)
