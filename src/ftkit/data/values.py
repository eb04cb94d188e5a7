"""The values that pass through the data path: Row -> Conversation or Segments -> Example -> Pack -> Batch.

Nothing here knows a model or a recipe. Shapes: T tokens of one micro-batch; N documents in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100  # label of a token that is not trained; torch.nn.functional.cross_entropy's default ignore_index


@dataclass(frozen=True, slots=True)
class Where:
    """Where a row came from: `file` as the recipe names it, 1-based `line` (or row number for tables)."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a data source, with the types its file gave it."""

    values: Mapping[str, Any]
    where: Where


@dataclass(frozen=True, slots=True)
class TrainPart:
    """Characters [start, end) of a turn's content and whether they are trained."""

    start: int
    end: int
    train: bool


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.

    Args:
        role: `system`, `user`, `assistant` or `tool`.
        content: text, exactly as in the row.
        train: the row's own wish for this turn; None leaves it to the recipe (roles_to_train).
        extra: further keys a chat template may read (tool_calls, reasoning_content, name ...).
        parts: of a trained turn only those that say so are trained; None trains it whole.
    """

    role: str
    content: str
    train: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[TrainPart, ...] | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns to be rendered by a chat template; `tools` are JSON-schema mappings given to the template."""

    messages: tuple[Message, ...]
    where: Where
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of plain text and whether its tokens are trained."""

    text: str
    train: bool


@dataclass(frozen=True, slots=True)
class Segments:
    """Text that needs no chat template (alpaca, completion, input_output); joined without separators.

    Args:
        add_bos, add_eos: whether the tokenizer's BOS is put in front (never trained), EOS behind
            (trained when the last segment is).
    """

    segments: tuple[Segment, ...]
    where: Where
    add_bos: bool = True
    add_eos: bool = True


@dataclass(frozen=True, slots=True)
class Tokens:
    """A row that came as tokens: `ids` int32 and whether each is trained, arrays of equal length."""

    ids: np.ndarray
    trained: np.ndarray
    where: Where


@dataclass(frozen=True, slots=True)
class Example:
    """One tokenized document: `input_ids` and `labels`, int32 arrays of equal length; labels are not shifted."""

    input_ids: np.ndarray
    labels: np.ndarray
    where: Where


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: its documents laid end to end in a single row, isolated by `cu_seqlens`.

    Padded, packed and unpacked batches all have this form: an unpacked micro-batch of 4 is one row of 4 documents;
    padding (pad_to_sequence_len) is one more document whose labels are all IGNORED.

    Args:
        input_ids: (1, T) int64.
        labels: (1, T) int64, not shifted; the first token of every document is IGNORED, so shifting by one
            never asks a document to predict the next one's start.
        position_ids: (1, T) int64, from 0 in each document.
        cu_seqlens: (N + 1,) int32, document borders, from 0 to T.
        max_seqlen: longest document.
        num_target_tokens: labels that are not IGNORED; 0 for the empty batches that even out ranks.
    """

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    num_target_tokens: int
