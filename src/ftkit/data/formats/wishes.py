"""What a row itself says about the training of a turn: whether, and on which of its characters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftkit.data.formats.fields import list_field, mapping_field
from ftkit.data.values import Row, TrainPart
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection

TRAIN_KEYS = ("train", "training", "weight", "loss_weight")  # read when the recipe names no key
WORDS: Mapping[str, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Wishes:
    """Where turns say it.

    Args:
        key: `message_field_training`: the key that says whether; None reads the usual ones.
        detail_key: `message_field_training_detail`: the key with a list of `{begin_offset, end_offset, train}`,
            character offsets into the content, the last one included.
    """

    key: str | None = None
    detail_key: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys that are read here and are no business of a template."""
        own = (self.key,) if self.key else TRAIN_KEYS
        return (*own, self.detail_key) if self.detail_key else own

    def whether(self, turn: Mapping[str, Any], what: str, row: Row) -> bool | None:
        """Whether the turn is trained; None leaves it to the recipe."""
        for key in (self.key,) if self.key else TRAIN_KEYS:
            value = turn.get(key)
            if isinstance(value, bool | int | float):
                return bool(value)
            if isinstance(value, str) and value.strip().lower() in WORDS:
                return WORDS[value.strip().lower()]
            if value is not None:
                raise DataError(
                    f"{what}: {key!r} must be true or false, got {value!r}",
                    where=str(row.where),
                    help="true trains the turn, false hides it; leave it out to go by roles_to_train",
                )
        return None

    def parts(self, turn: Mapping[str, Any], content: str, what: str, row: Row) -> tuple[TrainPart, ...] | None:
        """The parts of the content that the turn says something about, in order; None if it says nothing.

        Raises:
            DataError: offsets that are no numbers, overlap, or lie outside the content.
        """
        value = turn.get(self.detail_key) if self.detail_key else None
        if value is None:
            return None
        parts = [
            _part(entry, f"{what}: {self.detail_key} {number}", row)
            for number, entry in enumerate(list_field(value, f"{what}: {self.detail_key!r}", row), start=1)
        ]
        parts.sort(key=lambda part: part.start)
        ends = [0, *(part.end for part in parts)]
        if any(part.start < end or part.end <= part.start for part, end in zip(parts, ends, strict=False)):
            raise _bad_offsets(f"{what}: parts must not overlap or be empty", parts, row)
        if ends[-1] > len(content):
            raise _bad_offsets(f"{what}: parts must lie within its {len(content)} characters", parts, row)
        return tuple(parts)


NO_WISHES = Wishes()


def wishes_of(dataset: DatasetSection) -> Wishes:
    """What a data set's entry says about them."""
    return Wishes(dataset.message_field_training, dataset.message_field_training_detail)


def _part(entry: Any, what: str, row: Row) -> TrainPart:
    part = mapping_field(entry, what, row)
    start, last, train = part.get("begin_offset"), part.get("end_offset"), part.get("train")
    if not (type(start) is int and type(last) is int and isinstance(train, bool)):
        raise DataError(
            f"{what} must have begin_offset, end_offset and train, got {dict(part)}",
            where=str(row.where),
            help='write {"begin_offset": 0, "end_offset": 8, "train": true}; the last character is included',
        )
    return TrainPart(start, last + 1, train)


def _bad_offsets(what: str, parts: list[TrainPart], row: Row) -> DataError:
    shown = ", ".join(f"{part.start}-{part.end - 1}" for part in parts)
    return DataError(
        f"{what}, got {shown}", where=str(row.where), help="count characters from 0; the last one is included"
    )
