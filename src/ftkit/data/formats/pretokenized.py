"""`type: pretokenized`: rows that are tokens already: `input_ids`, and perhaps `labels` and `attention_mask`.

Without labels every token is trained. Positions that the attention mask leaves out are padding, and are dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ftkit.data.formats.fields import Formatter, list_field, missing_column
from ftkit.data.values import IGNORED, Row, Tokens
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection


def build(dataset: DatasetSection) -> Formatter:
    """A formatter of rows of tokens."""
    del dataset  # the columns' names are the ones every library gives them

    def format_row(row: Row) -> Tokens:
        if "input_ids" not in row.values:
            raise missing_column(row, "input_ids")
        ids = _whole_numbers(row, "input_ids", None)
        labels = _whole_numbers(row, "labels", len(ids)) if row.values.get("labels") is not None else ids
        if row.values.get("attention_mask") is not None:
            seen = _whole_numbers(row, "attention_mask", len(ids)) != 0
            ids, labels = ids[seen], labels[seen]
        trained = labels != IGNORED
        other = np.flatnonzero(trained & (labels != ids))
        if len(other):
            at = int(other[0])
            raise DataError(
                f"a label must be its token's id or {IGNORED}, got {labels[at]} for token {ids[at]} at position {at}",
                where=str(row.where),
                help="labels are not shifted: position i of labels belongs to position i of input_ids",
            )
        return Tokens(ids.astype(np.int32), trained, row.where)

    return format_row


def _whole_numbers(row: Row, name: str, length: int | None) -> np.ndarray:
    values: list[Any] = list_field(row.values[name], f"column {name!r}", row)
    if any(type(value) is not int for value in values):
        wrong = next(value for value in values if type(value) is not int)
        raise _refused(row, f"column {name!r} must hold whole numbers, got {wrong!r}")
    if length is not None and len(values) != length:
        raise _refused(row, f"column {name!r} must be as long as 'input_ids' ({length}), got {len(values)}")
    return np.array(values, np.int64)


def _refused(row: Row, what: str) -> DataError:
    return DataError(what, where=str(row.where), help="mend or remove the row, or set bad_rows: skip")
