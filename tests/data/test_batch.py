from __future__ import annotations

import numpy as np
import torch

from ftkit.data.batch import collate
from ftkit.data.store import ExampleStore, StoreWriter
from ftkit.data.values import IGNORED, Where


def store(*documents: list[int]) -> ExampleStore:
    writer = StoreWriter()
    for line, document in enumerate(documents, start=1):
        ids = np.array(document, np.int32)
        writer.add(ids, np.ones(len(ids), np.bool_), Where("rows.jsonl", line))
    return writer.in_memory()


def test_documents_lie_end_to_end_and_positions_restart() -> None:
    batch = collate(store([5, 6, 7], [8, 9]), [1, 0], pad_to=None, pad_id=0)
    assert batch.input_ids.tolist() == [[8, 9, 5, 6, 7]]
    assert batch.position_ids.tolist() == [[0, 1, 0, 1, 2]]
    assert batch.cu_seqlens.tolist() == [0, 2, 5]
    assert batch.max_seqlen == 3
    assert (batch.input_ids.dtype, batch.cu_seqlens.dtype) == (torch.int64, torch.int32)


def test_no_document_predicts_the_start_of_the_next() -> None:
    batch = collate(store([5, 6, 7], [8, 9]), [0, 1], pad_to=None, pad_id=0)
    assert batch.labels.tolist() == [[IGNORED, 6, 7, IGNORED, 9]]
    assert batch.num_target_tokens == 3


def test_padding_is_one_more_document_masked_by_position() -> None:
    batch = collate(store([5, 6, 2]), [0], pad_to=6, pad_id=2)  # the pad token is the last document's EOS
    assert batch.input_ids.tolist() == [[5, 6, 2, 2, 2, 2]]
    assert batch.labels.tolist() == [[IGNORED, 6, 2, IGNORED, IGNORED, IGNORED]]
    assert batch.cu_seqlens.tolist() == [0, 3, 6]


def test_a_full_row_gets_no_padding() -> None:
    assert collate(store([5, 6, 2]), [0], pad_to=3, pad_id=2).cu_seqlens.tolist() == [0, 3]


def test_a_rank_without_documents_gets_padding_only() -> None:
    batch = collate(store([5, 6]), [], pad_to=None, pad_id=7)
    assert batch.input_ids.tolist() == [[7]]
    assert batch.num_target_tokens == 0


def test_collating_leaves_the_store_as_it_was() -> None:
    documents = store([5, 6])
    collate(documents, [0], pad_to=None, pad_id=0)
    assert documents[0].labels.tolist() == [5, 6]
