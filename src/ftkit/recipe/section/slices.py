"""What an interleave file says: which layers of which models follow one another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """Tensors whose name holds `filter` (None: all) are multiplied by `value`."""

    filter: str | None
    value: float


@dataclass(frozen=True, slots=True)
class Slice:
    """Layers `first` up to, not including, `last` of a model.

    Args:
        where: `file:line:column` of the range, for messages.
        scale: the first rule that fits a tensor counts; the slice's own come before those of the whole file.
    """

    model: str
    first: int
    last: int
    where: str
    scale: tuple[ScaleRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Stacking:
    """An interleave file, read.

    Args:
        dtype: of the floats of the result; None as in the files.
        tokenizer: the model whose tokenizer goes with the result; None for the first slice's.
    """

    file: str
    slices: tuple[Slice, ...]
    dtype: str | None = None
    tokenizer: str | None = None
