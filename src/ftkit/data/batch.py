"""Documents -> one micro-batch of tensors. The only file of the data path that needs torch.

All documents of a micro-batch lie end to end in one row; `cu_seqlens` says where each begins, and attention must not
cross a border. Padding is one more document, so it is isolated like any other, and it is masked by its position, never
by its id: a pad token equal to EOS cannot hide a real EOS.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ftkit.data.store import ExampleStore
from ftkit.data.values import IGNORED, Batch


def collate(store: ExampleStore, document_indices: Sequence[int], *, pad_to: int | None, pad_id: int) -> Batch:
    """Lay documents end to end in one row.

    Args:
        document_indices: none for a rank that has nothing left in a short step: the batch is then all padding.
        pad_to: tokens of the row, reached by one document of padding; None adds none. A longer row is left as it is.
    """
    examples = [store[index] for index in document_indices]
    ids = [example.input_ids for example in examples]
    labels = [_without_first(example.labels) for example in examples]
    missing = max(pad_to or 0, 1) - sum(map(len, ids))  # at least one token: every rank runs every forward
    if missing > 0:
        ids.append(np.full(missing, pad_id, np.int32))
        labels.append(np.full(missing, IGNORED, np.int32))
    lengths = np.array([len(document) for document in ids])
    borders = np.concatenate([[0], np.cumsum(lengths)])
    all_labels = np.concatenate(labels).astype(np.int64)
    positions = np.arange(borders[-1]) - np.repeat(borders[:-1], lengths)
    return Batch(
        input_ids=torch.from_numpy(np.concatenate(ids).astype(np.int64))[None],  # (1, T)
        labels=torch.from_numpy(all_labels)[None],  # (1, T)
        position_ids=torch.from_numpy(positions.astype(np.int64))[None],  # (1, T)
        cu_seqlens=torch.from_numpy(borders.astype(np.int32)),  # (N + 1,)
        max_seqlen=int(lengths.max()),
        num_target_tokens=int((all_labels != IGNORED).sum()),
    )


def _without_first(labels: np.ndarray) -> np.ndarray:
    """Labels whose first is ignored: after the shift by one, no document predicts the next one's start."""
    copy: np.ndarray = labels.copy()
    copy[:1] = IGNORED
    return copy
