"""Rules that look into the model's folder, where that is on this disk; for a model of the hub they are silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftkit.recipe.rule.base import Found, Rule, View, error, warning

STRETCHING = ("rope_scaling", "rope_parameters", "max_position_embeddings")  # keys of model_config


def beyond_positions(r: View) -> Found:
    """`sequence_len` is longer than the model has position embeddings: there is nothing to look up for the rest."""
    learned = language_config(r).get("n_positions")
    if isinstance(learned, int) and r.sequence_len > learned:
        message = f"`sequence_len` is {r.sequence_len}, the model has {learned} positions"
        yield error("sequence_len", message, f"take {learned}")


def beyond_training(r: View) -> Found:
    """`sequence_len` is longer than any text the model was trained on, so that it has not learned such distances."""
    longest = language_config(r).get("max_position_embeddings")
    if isinstance(longest, int) and r.sequence_len > longest and not any(key in r.model_config for key in STRETCHING):
        message = f"`sequence_len` is {r.sequence_len}, the model was trained up to {longest}"
        yield warning("sequence_len", message, f"take {longest}, or stretch positions by rope_scaling in model_config")


def eos_is_new(r: View) -> Found:
    """The recipe's end of text is not in the tokenizer, so that an untrained token would have to end answers."""
    eos, known = r.special_tokens.eos_token, tokens_of(r)
    if eos and known and eos not in known and eos not in r.tokens:
        message = f"{eos} is not in the tokenizer"
        yield warning("special_tokens.eos_token", message, "list it under `tokens`, or leave the model's own")


def language_config(r: View) -> Mapping[str, Any]:
    """The configuration at hand; of a model with several parts, that of its language."""
    config = r.model_file("config.json")
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def tokens_of(r: View) -> set[str]:
    """Every token of the tokenizer at hand; empty where none is."""
    file = r.model_file("tokenizer.json", folder=r.tokenizer_config)
    model, added = file.get("model"), file.get("added_tokens")
    vocabulary = (
        model.get("vocab") if isinstance(model, Mapping) else ()
    )  # a mapping of tokens, or [token, score] pairs
    entries = [entry["content"] for entry in added or () if isinstance(entry, Mapping) and "content" in entry]
    return {str(entry[0] if isinstance(entry, list) else entry) for entry in (*entries, *(vocabulary or ()))}


RULES: tuple[Rule, ...] = (beyond_positions, beyond_training, eos_is_new)
