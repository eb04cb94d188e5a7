"""Data sets of the hub, through `datasets`. No other file of the data path asks the network for anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftkit.data.values import Row, Where
from ftkit.errors import DataError
from ftkit.hub import why_silent
from ftkit.recipe.section.data import DatasetSection


def load_hub(dataset: DatasetSection) -> Any:
    """The `datasets.Dataset` that a hub id, with its name, split, revision and data_files, stands for.

    Raises:
        DataError: it does not exist, has no such split, or cannot be reached.
    """
    import datasets

    if not is_cached(dataset.path):
        _reach(dataset.path)
    with _spoken_of(dataset.path):
        return datasets.load_dataset(
            dataset.path,
            name=dataset.name,
            split=dataset.split or "train",
            revision=dataset.revision,
            data_files=dataset.data_files,
        )


class LostError(DataError):
    """Rows stopped coming, through no fault of theirs: what was prepared of them stays good."""


@dataclass(frozen=True)
class HubStream:
    """A data set of the hub whose rows are read from there as they are wanted, without a copy of it here.

    Args:
        builder: the `datasets.DatasetBuilder`.
    """

    path: str
    builder: Any

    def rows(self, split: str) -> Iterator[Row]:
        """Rows of a whole split; `line` counts them from 1.

        Raises:
            DataError: there is no such split.
            LostError: the hub is lost on the way.
        """
        with _spoken_of(self.path):
            table = self.builder.as_streaming_dataset(split=split)
            try:
                yield from hub_rows(table, self.path)
            except OSError as lost:
                raise LostError(
                    f"the hub was lost while its rows were read: {lost or type(lost).__name__}",
                    where=self.path,
                    help="run the same command again; it goes on where this one stopped",
                ) from lost

    def num_rows(self, split: str) -> int | None:
        """Rows of a split by the data set's own account, if it gives one."""
        known = (self.builder.info.splits or {}).get(split)
        return (known.num_examples or None) if known else None

    def fingerprint(self) -> str:
        """Changes with the commit of the data set and with what of it is asked for."""
        return f"{self.builder.hash} {self.builder.config_id}"


def stream_hub(dataset: DatasetSection) -> HubStream:
    """The rows that a hub id, with its name, revision and data_files, stands for, none of them read yet.

    Raises:
        DataError: it does not exist or cannot be reached.
    """
    import datasets

    _reach(dataset.path)
    with _spoken_of(dataset.path):
        builder = datasets.load_dataset_builder(
            dataset.path, name=dataset.name, revision=dataset.revision, data_files=dataset.data_files
        )
    return HubStream(dataset.path, builder)


@contextmanager
def _spoken_of(path: str) -> Iterator[None]:
    """Turn what `datasets` raises into our own errors."""
    try:
        yield
    except OSError as absent:  # ConnectionError, DatasetNotFoundError and the offline errors are these
        raise _absent(path, absent) from absent
    except ValueError as bad:
        raise DataError(
            f"the hub's data set cannot be read as asked: {bad}",
            where=path,
            help="check name, split and data_files of this data set",
        ) from bad


def is_cached(path: str) -> bool:
    """Whether `datasets` has prepared it here before."""
    from datasets import config

    return (Path(config.HF_DATASETS_CACHE) / path.replace("/", "___")).is_dir()


def _reach(path: str) -> None:
    """Ask the hub for a sign of life: `datasets` tries five times, half a minute, before it says that there is none.

    Raises:
        DataError: there is none.
    """
    silent = why_silent()
    if silent is not None:
        raise _absent(path, silent)


def _absent(path: str, why: object) -> DataError:
    return DataError(
        f"neither a local file nor a data set of the hub that can be read now, got {path} ({why})",
        where=path,
        help="for a local file give its path; for a hub id check the name, the connection and HF_HUB_OFFLINE",
    )


def hub_rows(table: Any, path: str) -> Iterator[Row]:
    """Rows of a loaded data set; `line` counts rows from 1."""
    return (Row(row, Where(path, number)) for number, row in enumerate(table, start=1))
