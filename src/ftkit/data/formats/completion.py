"""`type: completion` (and `pretrain`): plain text, every token trained, BOS in front and EOS behind."""

from __future__ import annotations

from ftkit.data.formats.fields import Formatter, text_field
from ftkit.data.values import Row, Segment, Segments
from ftkit.recipe.section.data import DatasetSection


def build(dataset: DatasetSection) -> Formatter:
    """A formatter of rows with one column of text, `text` unless `field` names another."""
    column = dataset.field or "text"

    def format_row(row: Row) -> Segments:
        return Segments((Segment(text_field(row, column), train=True),), row.where)

    return format_row
