from __future__ import annotations

import torch
from standin import documents

from ftkit.data.order import StepPlan
from ftkit.parallel.backend import World
from ftkit.train.batches import PlannedBatches, evaluation_source, num_targets


def world(rank: int, size: int) -> World:
    return World(rank, size, rank, size, torch.device("cpu"))


def test_every_rank_knows_the_target_tokens_of_the_whole_step() -> None:
    store = documents(11)
    for size in (1, 2, 3):
        for step in range(2):
            plan = StepPlan([[i] for i in range(11)], micro_batch_size=2, accumulation=3, world_size=size)
            parts = [PlannedBatches(store, plan, world(r, size), pad_to=None, pad_id=0).make(step) for r in range(size)]
            local = sum(batch.num_target_tokens for part in parts for batch in part.micro_batches)
            assert {part.num_target_tokens for part in parts} == {local}
            assert len({len(part.micro_batches) for part in parts}) == 1
            if step + 1 == plan.num_steps:
                break


def test_working_ahead_gives_what_asking_gives() -> None:
    store, plan = documents(9), StepPlan([[i] for i in range(9)], micro_batch_size=2, num_epochs=2)
    source = PlannedBatches(store, plan, world(0, 1), pad_to=32, pad_id=0)
    for step in (0, 1, 2, 5, 6, 1):  # a resumed run begins in the middle
        ahead, asked = source.step(step), source.make(step)
        assert ahead.num_target_tokens == asked.num_target_tokens
        for mine, theirs in zip(ahead.micro_batches, asked.micro_batches, strict=True):
            assert torch.equal(mine.input_ids, theirs.input_ids)
    source.close()


def test_the_first_token_is_no_target() -> None:
    store = documents(5)
    for index in range(5):
        assert num_targets(store, index) == int((store[index].labels[1:] != -100).sum())


def test_evaluation_sees_every_document_once_at_any_number_of_ranks() -> None:
    store = documents(7)
    total = sum(num_targets(store, index) for index in range(7))
    for size in (1, 2, 4):
        sources = [evaluation_source(store, [[i] for i in range(7)], 2, world(r, size), pad_id=0) for r in range(size)]
        batches = [list(source()) for source in sources]
        assert len({len(part) for part in batches}) == 1
        assert sum(batch.num_target_tokens for part in batches for batch in part) == total
