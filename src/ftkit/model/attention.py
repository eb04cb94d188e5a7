"""Causal attention that keeps the documents of a row apart.

A micro-batch is one row of documents laid end to end; `cu_seq_lens_q` (N + 1 borders from 0 to T) says where each
begins. On the CPU every document gets its own causal attention, so nothing can leak and no (T, T) mask is built.
Without borders (generation) it is ordinary causal attention over the whole row, with transformers' own mask where a
cache or padding asks for one.

transformers' public `AttentionInterface` and `AttentionMaskInterface` bring it into every architecture that uses them.

Shapes: B batch (1 when borders are given), T tokens, S keys, H heads, K kv heads (H a multiple of K), E head width.
"""

from __future__ import annotations

from itertools import pairwise
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
    *,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> Tensor | None:
    """Return what `attend` needs beyond the plain causal rule: None, a note, or a boolean (B, 1, T, S) mask.

    The note is a (1, 1, 1, 2) integer on the CPU: the window (0 for none), which some architectures (Qwen2-MoE) tell
    only here, and whether transformers saw position ids restart (1), so that `attend` can refuse a packed row whose
    borders did not reach it. A boolean mask comes from transformers where a cache, padding or a rule of the model's own
    asks for one; it holds the document borders too.
    """
    own_rule = kwargs.get("use_vmap") or getattr(kwargs.get("config"), "attention_chunk_size", None)
    if attention_mask is None and q_length == kv_length and not own_rule:
        note = (local_size or 0, int(not allow_is_causal_skip))
        return torch.tensor(note).view(1, 1, 1, 2) if any(note) else None
    mask: Tensor | None = sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip,
        **kwargs,
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
    position_ids: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks its attention functions to: (B, H, T, E), (B, K, S, E) x 2 -> (B, T, H, E).

    `sliding_window` lets a token see itself and `sliding_window - 1` before it; `softcap` turns scores into
    softcap * tanh(scores / softcap) (Gemma 2).

    Raises:
        ModelError: a packed row whose borders the architecture does not pass on, or a kind of attention not built yet.
    """
    refuse_unknown(kwargs)
    packed = False
    if attention_mask is not None and attention_mask.dtype == torch.int64:
        window, restarts = attention_mask.flatten().tolist()
        sliding_window, packed, attention_mask = window or None, bool(restarts), None
    one = AttendOne(scaling, dropout, sliding_window, softcap)
    borders = cu_seq_lens_q.tolist() if cu_seq_lens_q is not None else restarts_of(position_ids) if packed else None
    if borders is None or attention_mask is not None:
        return one(query, key, value, attention_mask).transpose(1, 2).contiguous(), None
    documents = [one(query[:, :, s:e], key[:, :, s:e], value[:, :, s:e], None) for s, e in pairwise(borders)]
    return torch.cat(documents, dim=2).transpose(1, 2).contiguous(), None  # (1, H, T, E) -> (1, T, H, E)


def refuse_unknown(kwargs: dict[str, Any]) -> None:
    """Refuse keyword arguments that would change the result: attention sinks and position biases."""
    given = [name for name in ("s_aux", "position_bias", "sinks") if kwargs.get(name) is not None]
    if given:
        raise ModelError(f"this architecture's attention is not supported yet, it uses {', '.join(given)}")


def restarts_of(position_ids: Tensor | None) -> list[int]:
    """Document borders read off (1, T) position ids, for architectures that pass these on but not `cu_seq_lens_q`."""
    if position_ids is None or position_ids.shape[0] != 1:
        raise ModelError(
            "this architecture does not tell its attention where documents begin, so a packed row would leak",
            help="documents cannot share a row with this model",
        )
    starts = (position_ids[0].diff() != 1).nonzero()[:, 0] + 1
    return [0, *starts.tolist(), position_ids.shape[1]]


class AttendOne:
    """Causal attention of one sequence with itself; the values are one layer's settings."""

    def __init__(self, scaling: float | None, dropout: float, window: int | None, softcap: float | None) -> None:
        self.scaling, self.dropout, self.window, self.softcap = scaling, dropout, window, softcap

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend; `mask` (B, 1, T, S), True where a token sees a key, replaces the causal rule and the window."""
        T, S = query.shape[2], key.shape[2]
        if mask is None and T > 1 and self.window is not None and self.window < T:
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
