"""What a run does with the tokens that begin, end and fill a text, in one table: many bad models come of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ftkit.model.plan import is_trained
from ftkit.objective.generate import ends_of_answer

if TYPE_CHECKING:
    from ftkit.assemble import Loaded
    from ftkit.inputs import Inputs
    from ftkit.model.plan import ModelPlan


def token_facts(inputs: Inputs, loaded: Loaded) -> dict[str, str]:
    """Special tokens as they are used, for the console and run.json; every line is asked of the tokenizer itself."""
    tokenizer = inputs.tokenizer
    ends = ends_of_answer(loaded.net, tokenizer)
    rows = loaded.plan.config.vocab_size
    return {
        "end of text": named(tokenizer, tokenizer.eos_token_id),
        "padding": padding(tokenizer),
        "begin of text": beginning(tokenizer),
        "an answer ends at": " or ".join(named(tokenizer, end) for end in ends) or "nothing: only its longest length",
        "chat template": "none: prompts are bare text" if not tokenizer.chat_template else "saved with the tokenizer",
        "vocabulary": f"{len(tokenizer):,} tokens, {rows:,} rows{new_rows(loaded.plan)}",
        "new tokens": new_tokens(tokenizer, loaded.plan),
    }


def named(tokenizer: Any, number: int | None) -> str:
    """A token as text and id."""
    return "none" if number is None else f"{tokenizer.convert_ids_to_tokens(number)} ({number})"


def padding(tokenizer: Any) -> str:
    """The pad token, and whether a tool that masks by id would mask the end of text with it."""
    same = tokenizer.pad_token_id == tokenizer.eos_token_id
    note = ", the end of text too: ftkit masks by place, other tools must not mask by this id" if same else ""
    return named(tokenizer, tokenizer.pad_token_id) + note


def beginning(tokenizer: Any) -> str:
    """The BOS token, and who writes it: the tokenizer before bare text, the chat template before a conversation."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return "none"
    writers = []
    if tokenizer("a").input_ids[0] == bos:
        writers.append("the tokenizer before bare text")
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        if tokenizer.apply_chat_template(turns, tokenize=False).startswith(tokenizer.bos_token):
            writers.append("the chat template before a conversation")
    return f"{named(tokenizer, bos)}, written by {' and '.join(writers) or 'nobody'}"


def new_rows(plan: ModelPlan) -> str:
    """How many rows the vocabulary grew by."""
    made = max((p.shape[0] - p.stored_rows for p in plan.root if p.stored_rows is not None), default=0)
    return f", {made} of them new" if made else ""


def new_tokens(tokenizer: Any, plan: ModelPlan) -> str:
    """The tokens that the recipe adds, and how their rows are trained."""
    if not plan.descriptions:
        return "none"
    names = ", ".join(named(tokenizer, number) for number in plan.descriptions)
    tables = [p.name.removesuffix(".weight") for p in plan.root if len(p.shape) > 1 and p.first_rows]
    return f"{names}; {how_trained(plan, tables)}"


def how_trained(plan: ModelPlan, tables: Sequence[str]) -> str:
    """In words: with all weights, with their whole tables, alone, or not at all."""
    if plan.adapter is None:
        return "trained with all weights"
    trained = [name for name in tables if is_trained(name, plan.adapter)]
    alone = plan.adapter.trainable_token_indices
    how = "their rows alone are trained" if alone else "trained with their whole tables"
    return f"{how}, in {' and '.join(trained)}" if trained else "their rows are not trained"
