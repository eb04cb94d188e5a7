"""Greedy answers to a few prompts, to see what training changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def answer(net: Any, tokenizer: Any, prompts: Sequence[str], *, max_new_tokens: int = 128) -> list[str]:
    """Return what `net` says to each of `prompts`, token by token the most likely one.

    Args:
        net: a net of transformers with whole weights; it is back in its mode when this returns.
        tokenizer: its chat template, if it has one, makes each prompt a user's turn.
    """
    was_training, kept_cache = net.training, net.config.use_cache
    net.eval()
    net.config.use_cache = True
    try:
        return [answer_one(net, tokenizer, prompt, max_new_tokens) for prompt in prompts]
    finally:
        net.config.use_cache = kept_cache
        net.train(was_training)


def answer_one(net: Any, tokenizer: Any, prompt: str, max_new_tokens: int) -> str:
    """The answer to one prompt, without special tokens."""
    ids = prompt_ids(tokenizer, prompt).to(net.device)  # (1, T)
    written: Tensor = net.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        generation_config=greedy(net, tokenizer, max_new_tokens),
    )
    text: str = tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
    return text.strip()


def prompt_ids(tokenizer: Any, prompt: str) -> Tensor:
    """Token ids (1, T) of a user's turn up to where the assistant begins, or of bare text without a chat template."""
    if not tokenizer.chat_template:
        ids: Tensor = tokenizer(prompt, return_tensors="pt").input_ids
        return ids
    turns = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    rendered: Tensor = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    return rendered


def greedy(net: Any, tokenizer: Any, max_new_tokens: int) -> Any:
    """Settings without any chance in them; the model's and the tokenizer's end of turn both end an answer."""
    from transformers import GenerationConfig

    ends = getattr(net.generation_config, "eos_token_id", None)
    ends = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    return GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(end for end in ends if end is not None) or None,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
    )
