"""Data sets of the hub, through `datasets`. No other file of the data path asks the network for anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ftkit.data.values import Row, Where
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection


def load_hub(dataset: DatasetSection) -> Any:
    """The `datasets.Dataset` that a hub id, with its name, split, revision and data_files, stands for.

    Raises:
        DataError: it does not exist, has no such split, or cannot be reached.
    """
    import datasets

    try:
        return datasets.load_dataset(
            dataset.path,
            name=dataset.name,
            split=dataset.split or "train",
            revision=dataset.revision,
            data_files=dataset.data_files,
        )
    except (ConnectionError, FileNotFoundError) as absent:  # DatasetNotFoundError and the offline errors are these
        raise DataError(
            f"neither a local file nor a data set of the hub that can be read now, got {dataset.path} ({absent})",
            where=dataset.path,
            help="for a local file give its path; for a hub id check the name, the connection and HF_HUB_OFFLINE",
        ) from absent
    except ValueError as bad:
        raise DataError(
            f"the hub's data set cannot be read as asked: {bad}",
            where=dataset.path,
            help="check name, split and data_files of this data set",
        ) from bad


def hub_rows(table: Any, path: str) -> Iterator[Row]:
    """Rows of a loaded data set; `line` counts rows from 1."""
    return (Row(row, Where(path, number)) for number, row in enumerate(table, start=1))
