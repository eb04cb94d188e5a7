"""Greedy answers to a few prompts, to see what training changed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

CONTENT = "ftkit"  # stands for an assistant's turn, to see what a template puts behind it


@torch.no_grad()
def answer(
    net: Any, tokenizer: Any, prompts: Sequence[str], *, max_new_tokens: int = 128, autocast: torch.dtype | None = None
) -> list[str]:
    """Return what `net` says to each of `prompts`, token by token the most likely one.

    Args:
        net: a net of transformers with whole weights; it is back in its mode when this returns.
        tokenizer: its chat template, if it has one, makes each prompt a user's turn.
        prompts: a user's words each.
        max_new_tokens: longest answer.
        autocast: dtype of products, as in training; None for the parameters' own.
    """
    was_training, kept_cache = net.training, net.config.use_cache
    net.eval()
    net.config.use_cache = True
    settings = greedy(net, tokenizer, max_new_tokens)
    precision = nullcontext() if autocast is None else torch.autocast(net.device.type, autocast)
    try:
        with precision:
            return [answer_one(net, tokenizer, prompt, settings) for prompt in prompts]
    finally:
        net.config.use_cache = kept_cache
        net.train(was_training)


def answer_one(net: Any, tokenizer: Any, prompt: str, settings: Any) -> str:
    """The answer to one prompt, without special tokens."""
    ids = prompt_ids(tokenizer, prompt).to(net.device)  # (1, T)
    written: Tensor = net.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    text: str = tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
    return text.strip()


def prompt_ids(tokenizer: Any, prompt: str) -> Tensor:
    """Token ids (1, T) of a user's turn up to where the assistant begins, or of bare text without a chat template.

    A template writes its own BOS; bare text gets what the tokenizer adds by itself.
    """
    if not tokenizer.chat_template:
        ids: Tensor = tokenizer(prompt, return_tensors="pt").input_ids
        return ids
    turns = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    rendered: Tensor = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    return rendered


def greedy(net: Any, tokenizer: Any, max_new_tokens: int) -> Any:
    """Settings without any chance."""
    from transformers import GenerationConfig

    return GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=ends_of_answer(net, tokenizer) or None,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
    )


def ends_of_answer(net: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: those of the model, the tokenizer's EOS and the chat template's end of turn."""
    own = getattr(net.generation_config, "eos_token_id", None)
    ends = {*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id, end_of_turn(tokenizer)}
    return sorted(end for end in ends if end is not None)


def end_of_turn(tokenizer: Any) -> int | None:
    """The special token that the chat template puts right behind an assistant's turn, if there is one.

    It need not be EOS: Llama 3 ends a turn with <|eot_id|>, and its base model's EOS is <|end_of_text|>.
    """
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": CONTENT}]
    text: str = tokenizer.apply_chat_template(turns, tokenize=False)
    behind = text.rpartition(CONTENT)[2].lstrip()
    ids: list[int] = tokenizer(behind, add_special_tokens=False).input_ids
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return ids[0] if ids and ids[0] in special else None
