"""Single rows of the embedding and of the head that are trained while the rest of the table stays frozen.

New tokens need rows of their own, and training the whole table for them costs its size in gradients and optimizer
states, and changes every other token. Here the trained rows are one small parameter beside the frozen table: the
embedding puts them where a token asks for one, the head computes their logits and writes them over the frozen ones.
Tied ends share the parameter. Files are PEFT's (`trainable_token_indices`); PEFT's own layer copies the whole table at
every call, and its backward pass makes a gradient of the table's size.

Shapes: V rows of the table, N trained rows, D width, T tokens (any leading axes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

DELTA = "trainable_tokens_delta"  # PEFT's name; it holds whole rows, not differences


class TrainedRows(nn.Module):
    """A frozen table, some rows of which are replaced by trained ones."""

    rows: Tensor
    order: Tensor

    def __init__(self, base: nn.Module, rows: Sequence[int], values: nn.Parameter) -> None:
        super().__init__()
        self.base_layer = base
        self.trainable_tokens_delta = values  # (N, D), float32, one for each of `rows`
        self.register_buffer("rows", torch.tensor(list(rows)), persistent=False)
        self.register_buffer("order", self.rows.argsort(), persistent=False)  # PEFT takes rows in any order

    @property
    def weight(self) -> Tensor:
        """The whole table (V, D) as this layer computes with it; a copy."""
        table: Tensor = self.base_layer.weight  # type: ignore[assignment]
        return table.index_copy(0, self.rows, self.trainable_tokens_delta.to(table.dtype))


class EmbeddingWithTrainedRows(TrainedRows):
    """Token embedding."""

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (T) -> (T, D)."""
        vectors: Tensor = self.base_layer(ids)
        found = torch.searchsorted(self.rows, ids, sorter=self.order)
        place = self.order[found.clamp_(max=len(self.rows) - 1)]
        trained = functional.embedding(place, self.trainable_tokens_delta).to(vectors.dtype)
        scale = getattr(self.base_layer, "embed_scale", None)  # Gemma's embedding scales what it returns
        if scale is not None:
            trained = trained * scale.to(vectors.dtype)
        return torch.where((self.rows[place] == ids).unsqueeze(-1), trained, vectors)


class HeadWithTrainedRows(TrainedRows):
    """Output head without a bias."""

    def forward(self, x: Tensor) -> Tensor:
        """(T, D) -> logits (T, V)."""
        logits: Tensor = self.base_layer(x)
        trained = functional.linear(x, self.trainable_tokens_delta.to(x.dtype)).to(logits.dtype)  # (T, N)
        return logits.index_copy_(-1, self.rows, trained)  # in place: a second copy of all logits would be the peak


def train_rows(net: Any, indices: Mapping[str, Sequence[int]]) -> None:
    """Wrap the tables of `net`, on meta, that `indices` names, and the head if it is tied to the embedding.

    Args:
        net: of transformers.
        indices: name of an embedding or a head, as short as PEFT takes it -> its rows to train.
    """
    names = {id(module): name for name, module in net.named_modules()}
    embedding, head = net.get_input_embeddings(), net.get_output_embeddings()
    of_embedding, of_head = (rows_of(names.get(id(table), ""), indices) for table in (embedding, head))
    values = None
    if of_embedding:
        values = empty_rows(embedding, len(of_embedding))
        net.set_submodule(names[id(embedding)], EmbeddingWithTrainedRows(embedding, of_embedding, values))
    if values is not None and head is not None and net.config.tie_word_embeddings:
        net.set_submodule(names[id(head)], HeadWithTrainedRows(head, of_embedding, values))
    elif of_head:
        net.set_submodule(names[id(head)], HeadWithTrainedRows(head, of_head, empty_rows(head, len(of_head))))


def empty_rows(table: nn.Module, num_rows: int) -> nn.Parameter:
    """Trained rows without values; float32 like every trained parameter beside a 16-bit base."""
    weight = table.get_parameter("weight")
    return nn.Parameter(torch.empty(num_rows, weight.shape[1], dtype=torch.float32, device=weight.device))


def rows_of(name: str, indices: Mapping[str, Sequence[int]]) -> list[int]:
    """The rows of module `name` that are trained."""
    return next((list(rows) for key, rows in indices.items() if is_named(name, key)), [])


def is_named(name: str, key: str) -> bool:
    """Whether PEFT takes `key` for the module `name`."""
    return bool(name) and (name == key or name.endswith(f".{key}"))
