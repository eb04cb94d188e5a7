"""The arithmetic of a merge: one weight of the base and what an adapter says of it, in float32.

    LoRA        W + s B A
    DoRA        m * (W + s B A) / |W + s B A|, the norm over each output's weights
    embedding   W + s (B A)^T
    trained rows and trained copies take the place of what was there

Shapes: D in_features, O out_features, R rank, V rows of an embedding. Conv1D keeps its weight as (D, O).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ftkit.errors import ModelError
from ftkit.save.merge_adapter import Change

Read = Callable[[str], Tensor]


def merged_weight(base: Tensor, change: Change, read: Read, *, transposed: bool) -> Tensor:
    """Return the merged weight in float32; `base` is not changed.

    Args:
        base: (O, D), or (D, O) where `transposed`; of an embedding (V, D).
        read: gives the adapter's tensors by their names in the file.

    Raises:
        ModelError: shapes do not fit.
    """
    weight = base.to(torch.float32, copy=True)
    for a, b in (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B")):
        if a in change.roles:
            flip = transposed or a == "lora_embedding_A"
            view = weight.t() if flip else weight
            add_product(view, read(change.roles[b]), read(change.roles[a]), change)
            if "lora_magnitude_vector" in change.roles:
                rescale(view, read(change.roles["lora_magnitude_vector"]))
    if "trainable_tokens_delta" in change.roles:
        rows = read(change.roles["trainable_tokens_delta"]).float()
        weight.index_copy_(0, torch.tensor(change.rows), rows)
    return weight


def add_product(weight: Tensor, b: Tensor, a: Tensor, change: Change) -> None:
    """Add s B A to `weight` (O, D) in place."""
    if (b.shape[0], a.shape[1]) != tuple(weight.shape) or b.shape[1] != a.shape[0]:
        shapes = f"A {tuple(a.shape)}, B {tuple(b.shape)}"
        raise ModelError(
            f"the adapter is of another base, whose weight is {tuple(weight.shape)}, got {shapes}",
            where=next(iter(change.roles.values())),
            help="give the base it was trained on with --base",
        )
    weight.addmm_(b.float(), a.float(), alpha=change.scaling)


def rescale(weight: Tensor, magnitude: Tensor) -> None:
    """Give each row of `weight` (O, D) the length that DoRA learned, in place."""
    norms = torch.linalg.vector_norm(weight, dim=1)
    weight.mul_((magnitude.float().view(-1) / norms).unsqueeze(1))
