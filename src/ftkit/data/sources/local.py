"""Local data: one file, a glob, a folder, or `data_files` under a folder; each file by its kind's reader."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ftkit.data.sources.folder import files_of_folder
from ftkit.data.sources.json_rows import count_lines, json_rows
from ftkit.data.sources.table_rows import arrow_rows, count_parquet, csv_rows, parquet_rows, text_rows, tsv_rows
from ftkit.data.values import Row
from ftkit.errors import DataError

Reader = Callable[[Path, str], Iterator[Row]]

READERS: Mapping[str, Reader] = {
    "json": json_rows,
    "jsonl": json_rows,
    "ndjson": json_rows,
    "csv": csv_rows,
    "tsv": tsv_rows,
    "parquet": parquet_rows,
    "arrow": arrow_rows,
    "txt": text_rows,
    "text": text_rows,
    "md": text_rows,
}


def is_local_file_name(path: str) -> bool:
    """Whether `path` can only mean a file here, by its ending, its start or a wildcard."""
    ending = path.rsplit(".", 1)[-1].lower()
    return ending in READERS or path.startswith((".", "/", "~", "\\")) or "*" in path or path[1:3] == ":\\"


def local_files(path: str, data_files: Sequence[str], split: str = "train") -> tuple[Path, ...]:
    """The files that `path` (and `data_files` under it) name, sorted within each pattern.

    Args:
        split: which split's files of a folder.

    Raises:
        DataError: nothing is there.
    """
    base = Path(path).expanduser()
    if path in READERS and data_files:  # `path: json` with the files in data_files, the way `datasets` takes them
        base = Path()
    if data_files:
        return tuple(file for pattern in data_files for file in _matches(str(base / pattern)))
    if base.is_dir():
        return files_of_folder(base, split, READERS)
    return _matches(str(base))


def read_file(path: Path, kind: str | None, name: str | None = None) -> Iterator[Row]:
    """The rows of one file.

    Args:
        name: what messages call it, if not by its path.
        kind: the recipe's `ds_type`; None goes by the file's ending.
    """
    ending = kind or path.suffix[1:].lower()
    if ending not in READERS:
        raise DataError(
            f"cannot tell the kind of file, got ending {ending!r}" if not kind else f"unknown ds_type, got {kind!r}",
            where=name or str(path),
            help=f"set ds_type to one of {', '.join(sorted(READERS))}",
        )
    return READERS[ending](path, name or str(path))


def count_rows(path: Path, kind: str | None) -> int | None:
    """Rows of a file that can be counted without reading them: lines of JSON, a parquet file's own number."""
    ending = kind or path.suffix[1:].lower()
    if ending in ("json", "jsonl", "ndjson"):
        return count_lines(path)
    if ending == "parquet":
        return count_parquet(path)
    return None


def _matches(pattern: str) -> tuple[Path, ...]:
    if Path(pattern).is_file():
        return (Path(pattern),)
    matches = glob.iglob(pattern, recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern
    found = tuple(path for match in sorted(matches) if (path := Path(match)).is_file())
    if not found:
        what = "no file matches the pattern" if glob.has_magic(pattern) else "file not found"
        raise DataError(
            f"{what}, got {Path(pattern).absolute()}",
            where=pattern,
            help="check the path; relative paths start at the folder the command runs in",
        )
    return found
