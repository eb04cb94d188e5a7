"""A recipe's data set entry -> its rows and a digest of its bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, BinaryIO

from ftkit.data.sources.folder import canonical, of_split, split_of
from ftkit.data.sources.hub import HubStream, hub_rows, is_cached, load_hub, stream_hub
from ftkit.data.sources.local import READERS, count_rows, is_local_file_name, local_files, read_file
from ftkit.data.sources.remote import fetch, is_remote
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
        addresses: local copy -> the address it came from, which messages name.
        table: the loaded `datasets.Dataset` of the hub; None for local files.
        stream: the same unloaded, when rows are streamed.
    """

    dataset: DatasetSection
    files: tuple[Path, ...]
    table: Any = None
    stream: HubStream | None = None
    addresses: Mapping[Path, str] = field(default_factory=dict)

    def rows(self) -> Iterator[Row]:
        """Rows in the order of the files; of `shards` parts, dealt out like cards, the one asked for."""
        first, step = self.dataset.shards_idx or 0, self.dataset.shards or 1
        if self.table is not None:
            return islice(hub_rows(self.table, self.dataset.path), first, None, step)
        parts = (self._part(part.strip()) for part in (self.dataset.split or "train").split("+"))
        return islice(chain.from_iterable(parts), first, None, step)

    def _part(self, split: str) -> Iterator[Row]:
        """Rows of one split or slice."""
        if self.stream is not None:
            stream, name = self.stream, split.partition("[")[0]
            return _sliced(lambda: stream.rows(name), split, self.dataset.path, stream.num_rows(name))
        files = self.files
        if len(files) > 1:  # a folder may hold several splits
            files = self._remote_files(split) if self.addresses else _files(self.dataset, split)

        def read() -> Iterator[Row]:
            return (row for f in files for row in read_file(f, self.dataset.ds_type, self.addresses.get(f)))

        return _sliced(read, split, self.dataset.path)

    def _remote_files(self, split: str) -> tuple[Path, ...]:
        """The copies that hold a split, by the names of the files in their folder; all of a glob or of data_files."""
        folder = self.dataset.path.rstrip("/") + "/"
        below = {file: address.removeprefix(folder) for file, address in self.addresses.items()}
        if self.dataset.data_files or any("://" in name for name in below.values()):
            return self.files
        return of_split({file: Path(name) for file, name in below.items()}, split.partition("[")[0], folder)

    def count(self) -> int | None:
        """Rows there are, at the cost of a glance: None where only reading them all tells."""
        if self.table is not None:
            return -(-len(self.table) // (self.dataset.shards or 1))
        if self.dataset.split and "[" in self.dataset.split:
            return None
        if self.stream is not None:
            parts = (self.dataset.split or "train").split("+")
            counts = [self.stream.num_rows(part.strip()) for part in parts]
        else:
            counts = [count_rows(file, self.dataset.ds_type) for file in self.files]
        if None in counts:
            return None
        return -(-sum(count or 0 for count in counts) // (self.dataset.shards or 1))

    def digest(self) -> str:
        """Changes when the content may have: the files' names and bytes, or the hub's own mark."""
        hasher = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as opened:
                hasher.update(f"{self.addresses.get(file, file)}\n{_sha256(opened)}\n".encode())
        if self.table is not None:
            hasher.update(f"{self.dataset.path} {self.table._fingerprint}".encode())
        if self.stream is not None:
            hasher.update(f"{self.dataset.path} {self.stream.fingerprint()}".encode())
        return hasher.hexdigest()


def open_source(dataset: DatasetSection, downloads: Path | None = None, *, streaming: bool = False) -> Source:
    """Find the data set `dataset` names: at its address, here, or else on the hub if the path can be a hub id.

    Args:
        downloads: folder that keeps copies of remote files; None takes a temporary one.
        streaming: read rows of the hub from there as they are wanted, unless they are here already.

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
    if is_remote(dataset.path):
        kept = downloads or Path(mkdtemp(prefix="ftkit-"))
        addresses = fetch(dataset.path, data_files, kept, READERS)
        _check_split(dataset, addresses.values())
        return Source(dataset, tuple(addresses), addresses=addresses)
    is_here = Path(dataset.path).expanduser().exists() or is_local_file_name(dataset.path)
    if is_here or (dataset.path in ("json", "csv", "parquet", "text", "arrow") and data_files):
        parts = (dataset.split or "train").split("+")
        files = dict.fromkeys(chain.from_iterable(_files(dataset, part.strip()) for part in parts))
        _check_split(dataset, map(str, files))
        return Source(dataset, tuple(files))
    if not HUB_ID.fullmatch(dataset.path):
        return Source(dataset, local_files(dataset.path, ()))  # raises: not found
    if streaming and not is_cached(dataset.path):
        return Source(dataset, (), stream=stream_hub(dataset))
    return Source(dataset, (), load_hub(dataset))


def _check_split(dataset: DatasetSection, names: Iterable[str]) -> None:
    """Refuse a split that no file tells by its name or folder: plain files are the split train and no other.

    Raises:
        DataError: there is one.
    """
    told = {split_of(Path(*Path(name).parts[-2:])) for name in names}
    for part in (dataset.split or "train").split("+"):
        split = part.strip().partition("[")[0]
        if canonical(split) not in {"train", *told}:
            raise DataError(
                f"files without a split in their names are the split train, got split {split!r}",
                where=dataset.path,
                help="take split out, or name the file or its folder after the split",
            )


def _files(dataset: DatasetSection, split: str) -> tuple[Path, ...]:
    """The local files of one split or slice."""
    data_files = (dataset.data_files,) if isinstance(dataset.data_files, str) else dataset.data_files or ()
    return local_files(dataset.path, data_files, split.partition("[")[0])


def _sliced(read: Callable[[], Iterator[Row]], split: str, path: str, num_rows: int | None = None) -> Iterator[Row]:
    match = SLICE.fullmatch(split)
    if not match:
        raise DataError(
            f"a split is a name or a slice of one, got {split!r}",
            where=path,
            help="write split: train, train[:100] or train[10%:20%]",
        )
    start, end = match["start"], match["end"]
    if start is None and end is None:
        return read()
    if not any(bound and ("%" in bound or bound.startswith("-")) for bound in (start, end)):
        return islice(read(), int(start or 0), int(end) if end else None)
    if num_rows is None:  # a share or a count from the end needs it; reading twice holds none of them
        num_rows = sum(1 for _ in read())
    first, last, _ = slice(_bound(start, num_rows), _bound(end, num_rows)).indices(num_rows)
    return islice(read(), first, max(first, last))


def _bound(text: str | None, num_rows: int) -> int | None:
    if text is None:
        return None
    return round(num_rows * int(text[:-1]) / 100) if text.endswith("%") else int(text)


def _sha256(file: BinaryIO) -> str:
    hasher = hashlib.sha256()
    while chunk := file.read(1 << 20):
        hasher.update(chunk)
    return hasher.hexdigest()
