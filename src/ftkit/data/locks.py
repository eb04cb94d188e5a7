"""Locks on open files, freed by the system when their process dies. Windows has none that do: none are taken there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


def hold(file: IO[str] | IO[bytes]) -> None:
    """Wait for the lock of an open file and hold it until the file is closed."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def tried(file: IO[str] | IO[bytes]) -> Iterator[bool]:
    """Whether the lock of an open file could be had at once; if so it is held until the file is closed."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
