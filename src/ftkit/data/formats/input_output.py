"""`type: input_output`: `{"segments": [{"label": false, "text": ...}, {"label": true, "text": ...}]}`.

The texts are joined as they stand, and nothing is added: BOS, EOS and markers are the row's own business.
"""

from __future__ import annotations

from typing import Any

from ftkit.data.formats.fields import Formatter, as_text, list_field, mapping_field, missing_column
from ftkit.data.values import Row, Segment, Segments
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection


def build(dataset: DatasetSection) -> Formatter:
    """A formatter of rows of labelled segments."""
    column = dataset.field or "segments"

    def format_row(row: Row) -> Segments:
        if column not in row.values:
            raise missing_column(row, column)
        entries = list_field(row.values[column], f"column {column!r}", row)
        segments = tuple(_segment(entry, number, row) for number, entry in enumerate(entries, start=1))
        return Segments(segments, row.where, add_bos=False, add_eos=False)

    return format_row


def _segment(entry: Any, number: int, row: Row) -> Segment:
    entry = mapping_field(entry, f"segment {number}", row)
    if not isinstance(entry.get("label"), bool):
        raise DataError(
            f"segment {number}: 'label' must be true or false, got {entry.get('label')!r}",
            where=str(row.where),
            help="true trains the segment, false hides it",
        )
    return Segment(as_text(entry.get("text"), f"segment {number}: 'text'", row), entry["label"])
