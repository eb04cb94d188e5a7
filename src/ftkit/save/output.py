"""A run's output_dir: made, tried and held before anything else is done.

One run at a time writes there. The lock is the system's, on `output_dir/.lock`: a process that dies, however it dies,
frees it, and the file it leaves behind means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ftkit.errors import CheckpointError

LOCK = ".lock"


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Make `folder`, and keep other runs out of it until the end; called on rank 0 only.

    A folder that was made here and is still empty at the end goes again.

    Raises:
        CheckpointError: it cannot be made or written, or another run holds it.
    """
    path = folder / LOCK
    lock = FileLock(path, timeout=0)
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as taken:
        raise CheckpointError(
            "another run is writing there",
            where=f"output_dir: {folder}",
            help="wait for its end, or give this run another output_dir",
        ) from taken
    except OSError as failed:
        raise CheckpointError(
            f"nothing can be written there, got {failed.strerror or failed}",
            where=f"output_dir: {folder}",
            help="give a folder that can be made and written",
        ) from failed
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # before the lock is free: after that it may be another run's
        lock.release()
        if made:
            with suppress(OSError):
                folder.rmdir()
