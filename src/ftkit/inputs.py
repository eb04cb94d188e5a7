"""The data side of a recipe put together: tokenizer, prepared documents, and the order they are seen in.

A run starts here, and so do `ftkit prepare` and `ftkit preview`, which see exactly what a run would: the same
tokenizer, the same cache, the same packs in the same steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftkit.data.cache import BROKEN
from ftkit.data.order import StepPlan
from ftkit.data.packing import pack, pack_singly
from ftkit.data.prepare import Prepared, prepare
from ftkit.data.store import ExampleStore
from ftkit.data.tokens import AddedTokens, add_tokens, read_tokenizer
from ftkit.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the data side gives a run.

    Args:
        tokens: what the recipe added to the tokenizer.
        notes: what was done otherwise than the recipe says, and why it makes no difference.
    """

    tokenizer: Any
    prepared: Prepared
    steps: StepPlan
    evaluation_packs: Sequence[Sequence[int]]
    tokens: AddedTokens
    notes: tuple[str, ...] = ()


def load_inputs(
    recipe: Recipe,
    source: str,
    *,
    world_size: int = 1,
    on_progress: Callable[[int, int | None], None] = lambda rows, expected: None,
) -> Inputs:
    """Read the tokenizer, prepare the data, and plan every step.

    Args:
        source: folder or hub id of the model, whose tokenizer is taken.
        on_progress: as for `prepare`.
    """
    data, training = recipe.data, recipe.training
    revision, trusted = recipe.model.revision_of_model, recipe.model.trust_remote_code
    tokenizer = read_tokenizer(recipe.tokens, source, revision=revision, trust_remote_code=trusted)
    added = add_tokens(tokenizer, recipe.tokens)
    prepared = prepare(
        data,
        tokenizer,
        cache_dir=cache_of(recipe),
        sequence_len=data.sequence_len,
        seed=training.seed,
        eot_tokens=recipe.tokens.eot_tokens,
        on_progress=on_progress,
    )
    if prepared.chat_template is not None:
        tokenizer.chat_template = prepared.chat_template  # what is trained on is what answers are asked and saved with
    grouped = data.group_by_length and not data.sample_packing
    steps = StepPlan(
        packs_of(prepared.train, data.sequence_len, packed=data.sample_packing),
        micro_batch_size=training.micro_batch_size,
        accumulation=training.gradient_accumulation_steps,
        world_size=world_size,
        seed=training.seed if training.data_seed is None else training.data_seed,
        num_epochs=training.num_epochs,
        max_steps=training.max_steps,
        shuffle=data.shuffle_merged_datasets,
        group_lengths=prepared.train.lengths if grouped else None,
    )
    evaluation, notes = evaluation_packs(recipe, prepared.evaluation, world_size)
    if data.streaming and steps.num_steps < steps.steps_per_epoch:
        notes += (
            f"streaming: all rows were prepared, and max_steps uses {steps.num_steps:,} of {steps.steps_per_epoch:,} "
            "steps of them; split: train[:N] prepares the first N rows only",
        )
    parts = (prepared.report.train, prepared.report.evaluation)
    notes += tuple(f"prepared data: {part.cache}" for part in parts if part and BROKEN in part.cache)
    return Inputs(tokenizer, prepared, steps, evaluation, added, notes)


def evaluation_packs(
    recipe: Recipe, held_out: ExampleStore | None, world_size: int
) -> tuple[Sequence[Sequence[int]], tuple[str, ...]]:
    """The packs of the held-out documents, and a note if they are too few to be packed.

    A set whose packs do not fill one micro-batch on every rank would leave some of them idle; one document a row then
    takes no longer, and gives the same loss.
    """
    if held_out is None:
        return (), ()
    data, training = recipe.data, recipe.training
    wanted = data.sample_packing if data.eval_sample_packing is None else data.eval_sample_packing
    packs = packs_of(held_out, data.sequence_len, packed=wanted)
    at_once = (training.eval_batch_size or training.micro_batch_size) * world_size
    if not wanted or len(packs) >= at_once:
        return packs, ()
    note = (
        f"eval_sample_packing: {len(held_out)} documents fill {len(packs)} of the {at_once} packs that are evaluated "
        "at once, so they are not packed; the loss is the same"
    )
    return packs_of(held_out, data.sequence_len, packed=False), (note,)


def packs_of(store: ExampleStore, capacity: int, *, packed: bool) -> Sequence[Sequence[int]]:
    """Group the documents of `store` into rows: full ones, or one document each."""
    return pack(store.lengths, capacity) if packed else pack_singly(len(store))


def cache_of(recipe: Recipe) -> Path:
    """Where prepared data lies: where the recipe says, else in the user's cache."""
    if recipe.data.dataset_prepared_path:
        return Path(recipe.data.dataset_prepared_path).expanduser()
    return Path(os.environ.get("FTKIT_CACHE") or Path.home() / ".cache" / "ftkit") / "prepared"
