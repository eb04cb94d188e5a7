"""A recipe's data set entry -> its rows and a digest of its bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from ftkit.data.sources.hub import hub_rows, load_hub
from ftkit.data.sources.local import count_rows, is_local_file_name, local_files, read_file
from ftkit.data.values import Row
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
SLICE = re.compile(r"(?P<split>[\w.-]+)(?:\[(?P<start>-?\d+%?)?:(?P<end>-?\d+%?)?\])?")


@dataclass(frozen=True)
class Source:
    """The rows of one data set entry, and what identifies their content.

    Args:
        files: local files; empty for a data set of the hub.
        table: the loaded `datasets.Dataset` of the hub; None for local files.
    """

    dataset: DatasetSection
    files: tuple[Path, ...]
    table: Any = None

    def rows(self) -> Iterator[Row]:
        """Rows in the order of the files; of `shards` parts, dealt out like cards, the one asked for."""
        first, step = self.dataset.shards_idx or 0, self.dataset.shards or 1
        if self.table is not None:
            return islice(hub_rows(self.table, self.dataset.path), first, None, step)
        rows = (row for file in self.files for row in read_file(file, self.dataset.ds_type))
        return islice(_sliced(rows, self.dataset), first, None, step)

    def count(self) -> int | None:
        """Rows there are, at the cost of a glance: None where only reading them all tells."""
        if self.table is not None:
            return -(-len(self.table) // (self.dataset.shards or 1))
        if self.dataset.split and "[" in self.dataset.split:
            return None
        counts = [count_rows(file, self.dataset.ds_type) for file in self.files]
        if None in counts:
            return None
        return -(-sum(count or 0 for count in counts) // (self.dataset.shards or 1))

    def digest(self) -> str:
        """Changes when the content may have: the files' names and bytes, or the hub's fingerprint."""
        hasher = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as opened:
                hasher.update(f"{file}\n{_sha256(opened)}\n".encode())
        if self.table is not None:
            hasher.update(f"{self.dataset.path} {self.table._fingerprint}".encode())
        return hasher.hexdigest()


def open_source(dataset: DatasetSection) -> Source:
    """Find the data set `dataset` names: here first, then on the hub if the path can be a hub id.

    Raises:
        DataError: it is nowhere.
    """
    if not 0 <= (dataset.shards_idx or 0) < (dataset.shards or 1):
        raise DataError(
            f"shards_idx must lie between 0 and {(dataset.shards or 1) - 1}, got {dataset.shards_idx}",
            where=dataset.path,
            help="the first of `shards` parts is 0; set shards to the number of parts",
        )
    data_files = (dataset.data_files,) if isinstance(dataset.data_files, str) else dataset.data_files or ()
    is_here = Path(dataset.path).expanduser().exists() or is_local_file_name(dataset.path)
    if is_here or (dataset.path in ("json", "csv", "parquet", "text", "arrow") and data_files):
        return Source(dataset, local_files(dataset.path, data_files))
    if not HUB_ID.fullmatch(dataset.path):
        return Source(dataset, local_files(dataset.path, ()))  # raises: not found
    return Source(dataset, (), load_hub(dataset))


def _sliced(rows: Iterator[Row], dataset: DatasetSection) -> Iterator[Row]:
    if not dataset.split:
        return rows
    match = SLICE.fullmatch(dataset.split)
    if not match:
        raise DataError(
            f"a split is a name or a slice of one, got {dataset.split!r}",
            where=dataset.path,
            help="write split: train, train[:100] or train[10%:20%]",
        )
    start, end = match["start"], match["end"]
    if start is None and end is None:
        return rows
    if not any(bound and ("%" in bound or bound.startswith("-")) for bound in (start, end)):
        return islice(rows, int(start or 0), int(end) if end else None)
    known = list(rows)  # a share or a count from the end needs the number of rows
    return iter(known[slice(_bound(start, len(known)), _bound(end, len(known)))])


def _bound(text: str | None, num_rows: int) -> int | None:
    if text is None:
        return None
    return round(num_rows * int(text[:-1]) / 100) if text.endswith("%") else int(text)


def _sha256(file: BinaryIO) -> str:
    hasher = hashlib.sha256()
    while chunk := file.read(1 << 20):
        hasher.update(chunk)
    return hasher.hexdigest()
