"""Several data sets in the proportions of their `weight`: of each, so many documents, none of them twice.

The data set that is scarcest for its weight is used whole; of the others a random choice, the same for the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ftkit.data.accounts import PartReport
from ftkit.data.store import ExampleStore
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection

MIXTURE_STREAM = 11  # keeps the choice's random numbers apart from those of the split and the epochs


def mix(
    store: ExampleStore, report: PartReport, datasets: Sequence[DatasetSection], seed: int
) -> tuple[ExampleStore, PartReport]:
    """Choose documents so that the data sets stand in the proportion of their weights.

    Args:
        store: the documents of all data sets, one set after the other.
        report: how many there are of each.

    Returns:
        `store` and `report` themselves if no data set has a weight; else a view of the one, in its order, and the other
        with how many documents are used.

    Raises:
        DataError: only some of the data sets have a weight.
    """
    weights = [dataset.weight for dataset in datasets]
    if all(weight is None for weight in weights):
        return store, report
    for dataset in datasets:
        if dataset.weight is None:
            raise DataError(
                "some data sets of the mixture have a weight and this one has none",
                where=dataset.path,
                help="give every data set a weight, or none",
            )
    counts = [account.documents for account in report.sets]
    total = min(count / weight for count, weight in zip(counts, weights, strict=True) if weight)
    chosen, start = [], 0
    for number, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        wanted = min(max(round(total * (weight or 0)), 1), count)
        order = np.random.default_rng([MIXTURE_STREAM, seed, number]).permutation(count)
        chosen.append(start + np.sort(order[:wanted]))
        start += count
    sets = tuple(replace(account, mixed=len(own)) for account, own in zip(report.sets, chosen, strict=True))
    return store.select(np.concatenate(chosen)), replace(report, sets=sets)
