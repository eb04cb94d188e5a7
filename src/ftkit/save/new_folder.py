"""A folder that appears under its name only when everything in it is written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ftkit.errors import CheckpointError
from ftkit.save.writing import writing


@contextmanager
def new_folder(out: Path, what: str) -> Iterator[Path]:
    """Yield a folder beside `out` to write in; it becomes `out` at the end, or goes if anything is raised.

    Args:
        out: must not be there yet, or be empty.
        what: is being written, as the subject of a sentence.

    Raises:
        CheckpointError: `out` holds something, or the system refuses to write there.
    """
    refuse_occupied(out)
    with writing(what, out):
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{out.name}.partial-", dir=out.parent))
        try:
            yield partial
            partial.chmod(0o755)  # mkdtemp makes it private
            partial.replace(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def refuse_occupied(out: Path) -> None:
    """Raise if `out` is a file, or a folder with something in it."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise CheckpointError(
            "there is something already, and nothing is overwritten",
            where=str(out),
            help="give another folder with --out, or remove this one",
        )
