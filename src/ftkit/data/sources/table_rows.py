"""Rows of csv, parquet, arrow and plain text files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ftkit.data.sources.text import BOM, decode
from ftkit.data.values import Row, Where
from ftkit.errors import DataError

ROWS_PER_BATCH = 256  # of a table turned into Python objects at a time
BUFFER_BYTES = 1 << 20  # of each column of a parquet file
ARROW_FILE = b"ARROW1"  # begins an Arrow file; a stream has no such mark
LONGEST_CELL = 2**31 - 1  # characters; what a C long holds everywhere. The module's own limit is 131072


def csv_rows(path: Path, name: str, *, delimiter: str = ",") -> Iterator[Row]:
    """Rows under the header line. Every cell is text, exactly as written; an empty cell is empty text.

    Raises:
        DataError: bytes that are no UTF-8, a column named twice, or a row with more or fewer cells than the header.
    """
    csv.field_size_limit(LONGEST_CELL)
    lines = _text_lines(path, name)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as bad:
            raise DataError(f"not CSV: {bad}", where=f"{name}:{line}", help="mend this line of the file") from None
        if not cells:
            continue
        if header is None:
            header = cells
            twice = [cell for number, cell in enumerate(cells) if cell and cell in cells[:number]]
            if twice:
                raise DataError(
                    f"the header names a column twice, got {twice[0]!r}",
                    where=f"{name}:{line}",
                    help="give each column a name of its own",
                )
        elif len(cells) != len(header):
            what = f"a row must have the header's {len(header)} cells, got {len(cells)}"
            raise DataError(
                what, where=f"{name}:{line}", help='put cells that hold a comma or a line break in "quotes"'
            )
        else:
            yield Row(dict(zip(header, cells, strict=True)), Where(name, line))


def text_rows(path: Path, name: str) -> Iterator[Row]:
    """One row a line that is not blank: `{"text": line}`, without its line end."""
    for number, line in enumerate(_text_lines(path, name), start=1):
        if line.strip():
            yield Row({"text": line.rstrip("\r\n")}, Where(name, number))


def parquet_rows(path: Path, name: str) -> Iterator[Row]:
    """Rows of a parquet file; `line` counts rows from 1."""
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES)  # else row groups are read whole
    except ArrowInvalid as bad:
        raise DataError(f"not a parquet file: {bad}", where=name, help="check the file, or set ds_type") from None
    with file:
        yield from _numbered(_read(file.iter_batches(batch_size=ROWS_PER_BATCH), name), name)


def arrow_rows(path: Path, name: str) -> Iterator[Row]:
    """Rows of an Arrow file or stream; `line` counts rows from 1."""
    from pyarrow import ArrowInvalid, ipc, memory_map

    with path.open("rb") as opened:
        is_stream = opened.read(len(ARROW_FILE)) != ARROW_FILE
    if not path.stat().st_size:
        raise DataError("not an Arrow file: it is empty", where=name, help="check the file, or set ds_type")
    with memory_map(str(path)) as source:
        try:
            reader = ipc.open_stream(source) if is_stream else ipc.open_file(source)
        except ArrowInvalid as bad:
            raise DataError(f"not an Arrow file: {bad}", where=name, help="check the file, or set ds_type") from None
        batches = reader if is_stream else map(reader.get_batch, range(reader.num_record_batches))
        yield from _numbered(_read(batches, name), name)


def _read(batches: Iterable[Any], name: str) -> Iterator[Mapping[str, Any]]:
    """The rows of Arrow batches, few of them as Python objects at a time.

    Raises:
        DataError: a batch cannot be read.
    """
    from pyarrow import ArrowException

    try:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_PER_BATCH):
                yield from batch.slice(start, ROWS_PER_BATCH).to_pylist()
    except (ArrowException, OSError) as bad:
        raise DataError(f"the file is damaged: {bad}", where=name, help="fetch or write it anew") from None


def _numbered(rows: Iterator[Mapping[str, Any]], name: str) -> Iterator[Row]:
    return (Row(row, Where(name, number)) for number, row in enumerate(rows, start=1))


def _text_lines(path: Path, name: str) -> Iterator[str]:
    """Lines with their ends kept (quoted CSV cells may hold them)."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            yield decode(raw.removeprefix(BOM) if number == 1 else raw, name, number)


def tsv_rows(path: Path, name: str) -> Iterator[Row]:
    """As `csv_rows`, cells parted by tabs."""
    return csv_rows(path, name, delimiter="\t")


def count_parquet(path: Path) -> int | None:
    """Rows of a parquet file by its own account; None where it is none, which reading it will say."""
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import read_metadata

    try:
        count: int = read_metadata(path).num_rows
    except (ArrowInvalid, OSError):
        return None
    return count
