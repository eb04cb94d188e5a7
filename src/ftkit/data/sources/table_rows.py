"""Rows of csv, parquet, arrow and plain text files."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ftkit.data.sources.text import BOM, decode
from ftkit.data.values import Row, Where
from ftkit.errors import DataError

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
        file = ParquetFile(path)
    except ArrowInvalid as bad:
        raise DataError(f"not a parquet file: {bad}", where=name, help="check the file, or set ds_type") from None
    with file:
        yield from _numbered((row for batch in file.iter_batches() for row in batch.to_pylist()), name)


def arrow_rows(path: Path, name: str) -> Iterator[Row]:
    """Rows of an Arrow file or stream; `line` counts rows from 1."""
    from pyarrow import ArrowInvalid, ipc, memory_map

    with memory_map(str(path)) as source:
        try:
            table = ipc.open_stream(source).read_all()
        except ArrowInvalid:
            try:
                table = ipc.open_file(source).read_all()
            except ArrowInvalid as bad:
                raise DataError(
                    f"not an Arrow file: {bad}", where=name, help="check the file, or set ds_type"
                ) from None
        yield from _numbered((row for batch in table.to_batches() for row in batch.to_pylist()), name)


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
