"""The held-out share of a data set: a function of the number of documents and the seed, so the same on every rank."""

from __future__ import annotations

import math

import numpy as np

from ftkit.data.store import ExampleStore
from ftkit.errors import DataError

SPLIT_STREAM = 0x5E7  # keeps the split's random numbers apart from those that order the epochs


def hold_out(store: ExampleStore, size: int | float, seed: int) -> tuple[ExampleStore, ExampleStore | None]:
    """Split off `val_set_size` documents for evaluation.

    Args:
        size: documents if a whole number, a share of all if below 1; 0 holds out none.

    Returns:
        Train and evaluation documents, each in the order of the data.

    Raises:
        DataError: nothing would be left to train on.
    """
    if size <= 0:
        return store, None
    num_held = math.ceil(size * len(store)) if size < 1 else int(size)
    if num_held >= len(store):
        raise DataError(
            f"val_set_size leaves nothing to train on, got {size} of {len(store)} documents",
            where="val_set_size",
            help="make val_set_size smaller, or add rows",
        )
    order = np.random.default_rng([SPLIT_STREAM, seed]).permutation(len(store))
    return store.select(np.sort(order[num_held:])), store.select(np.sort(order[:num_held]))
