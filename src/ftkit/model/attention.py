"""Causal attention that keeps the documents of a row apart.

A micro-batch is one row of documents laid end to end; `cu_seq_lens_q` (N + 1 borders from 0 to T) says where each
begins. On the CPU every document gets its own causal attention, so nothing can leak and no (T, T) mask is built.
Without borders (generation) it is ordinary causal attention over the whole row, with transformers' own mask where a
cache or padding asks for one.

transformers' public `AttentionInterface` and `AttentionMaskInterface` bring it into every architecture that uses them.

Shapes: B batch (1 when borders are given), T tokens, S keys, H heads, K kv heads (H a multiple of K), E head width.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ftkit.errors import ModelError

NAME = "ftkit"  # the attn_implementation of every net that ftkit builds


def register_attention() -> None:
    """Make `attn_implementation="ftkit"` known to transformers; doing it again changes nothing."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)


def make_mask(
    *, q_length: int, kv_length: int, attention_mask: Tensor | None = None, local_size: int | None = None, **kwargs: Any
) -> Tensor | None:
    """Return what `attend` needs beyond the causal rule: nothing, a window, or a boolean (B, 1, T, S) mask.

    A window comes as a (1, 1, 1, 1) integer on the CPU, because some architectures (Qwen2-MoE) tell it to the mask
    function only. A boolean mask comes from transformers where a cache, padding or a rule of the model's own asks for
    one; it holds the document borders too, which transformers reads off the position ids.
    """
    own_rule = kwargs.get("use_vmap") or getattr(kwargs.get("config"), "attention_chunk_size", None)
    if attention_mask is None and q_length == kv_length and not own_rule:
        return None if local_size is None else torch.tensor(local_size).view(1, 1, 1, 1)
    mask: Tensor | None = sdpa_mask(
        q_length=q_length, kv_length=kv_length, attention_mask=attention_mask, local_size=local_size, **kwargs
    )
    return mask


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: (B, H, T, E), (B, K, S, E) x 2 -> (B, T, H, E).

    Args:
        sliding_window: a token sees itself and `sliding_window - 1` tokens before it.
        softcap: scores become softcap * tanh(scores / softcap) (Gemma 2).
    """
    refuse_unknown(kwargs)
    if attention_mask is not None and attention_mask.dtype == torch.int64:
        sliding_window, attention_mask = int(attention_mask), None
    one = AttendOne(scaling, dropout, sliding_window, softcap)
    if cu_seq_lens_q is None or attention_mask is not None:
        assert attention_mask is not None or not has_borders(kwargs.get("position_ids")), (
            "packed row without cu_seq_lens_q"
        )
        return one(query, key, value, attention_mask).transpose(1, 2).contiguous(), None
    borders = itertools.pairwise(cu_seq_lens_q.tolist())
    documents = [one(query[:, :, s:e], key[:, :, s:e], value[:, :, s:e], None) for s, e in borders]
    return torch.cat(documents, dim=2).transpose(1, 2).contiguous(), None  # (1, H, T, E) -> (1, T, H, E)


def refuse_unknown(kwargs: dict[str, Any]) -> None:
    """Refuse keyword arguments that would change the result: attention sinks and position biases."""
    given = [name for name in ("s_aux", "position_bias", "sinks") if kwargs.get(name) is not None]
    if given:
        raise ModelError(f"this architecture's attention is not supported yet, it uses {', '.join(given)}")


def has_borders(position_ids: Tensor | None) -> bool:
    """Whether position ids restart inside a row. Looked at on the CPU only, where it costs nothing."""
    if position_ids is None or position_ids.device.type != "cpu" or position_ids.ndim != 2:
        return False
    return bool((position_ids.diff(dim=-1) != 1).any())


class AttendOne:
    """Causal attention of one sequence with itself; the values are one layer's settings."""

    def __init__(self, scaling: float | None, dropout: float, window: int | None, softcap: float | None) -> None:
        self.scaling, self.dropout, self.window, self.softcap = scaling, dropout, window, softcap

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend; `mask` (B, 1, T, S), True where a token sees a key, replaces the causal rule and the window."""
        T, S = query.shape[2], key.shape[2]
        if mask is None and T > 1 and self.window is not None and T > self.window:
            mask = window_mask(T, self.window, query.device)
        if self.softcap is not None:
            if mask is None and T > 1:
                mask = window_mask(T, T, query.device)
            return self.capped(query, key, value, mask)
        assert mask is not None or T in (1, S), "a chunk of a longer sequence needs its mask"
        out: Tensor = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout,
            is_causal=mask is None and T > 1,
            scale=self.scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out

    def capped(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """The same with soft-capped scores, which torch's fused attention does not offer."""
        assert self.softcap is not None
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)  # K -> H heads
        scores = query @ key.transpose(2, 3) * (self.scaling or query.shape[-1] ** -0.5)  # (B, H, T, S)
        scores = self.softcap * torch.tanh(scores / self.softcap)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
        return nn.functional.dropout(weights, self.dropout) @ value


def window_mask(T: int, window: int, device: torch.device) -> Tensor:
    """(1, 1, T, T), True where a token sees a key: the last `window` tokens up to itself."""
    ones = torch.ones(T, T, dtype=torch.bool, device=device)
    return ones.tril().triu(1 - window)[None, None]
