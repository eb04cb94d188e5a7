"""The cache of prepared data: a folder named by everything that shapes its content.

A folder is written beside its final name and renamed when whole, so a kill leaves no half cache, and a lock file lets
one of several processes on a disk do the work while the others wait for it. What a killed process had done is taken up
by the next (`partial.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ftkit.data.accounts import PartReport, part_from_json, write_rejected
from ftkit.data.locks import hold
from ftkit.data.store import ExampleStore, open_store, save_store
from ftkit.errors import DataError

META, KEY = "prepared.json", "key.json"
BROKEN = "what was prepared is broken"
NEIGHBOURS = 50  # folders that a miss is compared with, the newest ones


class BrokenError(Exception):
    """Prepared data that is not whole, and why; it is made anew."""


def cache_key(parts: Mapping[str, Any]) -> str:
    """A name from everything that shapes the tokens, this package's own source included."""
    return _digest(described(parts))[:24]


def described(parts: Mapping[str, Any]) -> dict[str, str]:
    """A digest for each part, and for the code."""
    return {name: _digest(value) for name, value in parts.items()} | {"the code": code_digest()}


def why_missed(folder: Path, parts: Mapping[str, Any]) -> str:
    """What keeps the nearest prepared data beside `folder` from being used."""
    wanted = described(parts)
    folders = (key for key in folder.parent.glob(f"[!.]*/{KEY}"))
    newest = sorted(folders, key=lambda key: key.stat().st_mtime, reverse=True)[:NEIGHBOURS]
    found = [other for key in newest if (other := _key_of(key))]
    changes = [[name for name in wanted if wanted[name] != other.get(name)] for other in found]
    changes = [names for names in changes if len(names) < len(wanted) - 1]  # else it has nothing to do with this data
    if not changes:
        return "nothing like it was prepared before"
    nearest = min(changes, key=len)
    return f"{', '.join(nearest)} changed"


def _key_of(file: Path) -> dict[str, str]:
    """What a neighbour's name is made of; empty where the disk spoilt it."""
    try:
        found = json.loads(file.read_text(encoding="utf8"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def code_digest() -> str:
    """Changes with any line of the data path, so that a mended formatter never meets old tokens."""
    hasher = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        hasher.update(file.read_bytes())
    return hasher.hexdigest()


def read_cache(folder: Path) -> tuple[ExampleStore, PartReport] | None:
    """What `write_cache` left in `folder`, or None.

    Raises:
        BrokenError: it is not whole any more.
    """
    if not folder.is_dir():
        return None
    try:
        meta = json.loads((folder / META).read_text(encoding="utf8"))
        store = open_store(folder, meta["files"])
        report = part_from_json(meta["report"], cache="hit", folder=str(folder))
    except (OSError, EOFError, ValueError, TypeError, KeyError) as bad:
        raise BrokenError(str(bad) or type(bad).__name__) from bad
    return store, report


def make_folder(folder: Path) -> None:
    """Make the folder of all prepared data.

    Raises:
        DataError: it cannot be made or written into.
    """
    why = "" if os.access(folder, os.W_OK) or not folder.exists() else "no right to write there"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as bad:
        why = (
            f"{bad.filename} is a file" if isinstance(bad, FileExistsError | NotADirectoryError) else str(bad.strerror)
        )
    if why:
        raise DataError(
            f"no folder of prepared data can be there: {why}, got {folder}",
            where="dataset_prepared_path",
            help="name a folder that can be written into",
        )


def write_cache(
    folder: Path, store: ExampleStore, report: PartReport, parts: Mapping[str, Any], made: Path | None = None
) -> None:
    """Write a part's arrays and report under a passing name, then give the folder its own.

    Args:
        parts: what the folder's name is made of, kept so that a later miss can say what changed.
        made: a folder where the arrays lie already, see `save_store`.
    """
    passing = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(passing, ignore_errors=True)
    passing.mkdir(parents=True)
    save_store(store, passing, made)
    meta = {"files": store.files, "report": report.to_json()}
    (passing / META).write_text(json.dumps(meta, indent=1, ensure_ascii=False), encoding="utf8")
    (passing / KEY).write_text(json.dumps(described(parts)), encoding="utf8")
    write_rejected(passing / "rejected.jsonl", report.rejected)
    try:
        passing.rename(folder)
    except OSError:  # another process was first, with the same content
        shutil.rmtree(passing)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock beside `folder`; the system frees it when the process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        hold(file)
        yield
