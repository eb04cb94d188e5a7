"""Packing: group documents into rows of at most `capacity` tokens, as few rows as can be had quickly.

The algorithm is best-fit decreasing: documents from longest to shortest, each into the fullest pack that still
holds it. One document at a time that is a search per document; here it runs over *kinds* instead. Lengths are whole
numbers up to the capacity, so a million documents have at most a few thousand different lengths, and a pack
that a document does not leave the fullest stays in the running only by its free room. For each length, from the
longest, and for each free room, from the tightest that holds it, whole groups of packs are filled at once:

    a group of n packs with free room r takes n * (r // length) documents of that length and moves to room r % length

which is what best-fit decreasing does one document at a time, because a pack just filled is the fullest and goes on
being filled until it is too full. Packs opened or filled together stay together as a `(first pack, number of packs,
documents in each)` range, so a step of the loop costs the same for one pack or ten thousand. The loop only notes
which range received how many documents; numpy writes every index to its place at the end.

Source: Johnson 1973, "Near-optimal bin packing algorithms" (11/9 of the optimum at worst; on real length
distributions within a tenth of a percent of the lower bound).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np

from ftkit.errors import DataError


@dataclass(frozen=True, eq=False)
class Packs(Sequence[list[int]]):
    """Packs of document indices, held as one flat array: a million small lists would take longer than packing.

    Args:
        flat: (documents,) indices, pack after pack.
        borders: (packs + 1,) where each pack begins in `flat`.
    """

    flat: np.ndarray
    borders: np.ndarray

    def __len__(self) -> int:
        return len(self.borders) - 1

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        pack: list[int] = self.flat[self.borders[index] : self.borders[index + 1]].tolist()
        return pack

    def __iter__(self) -> Iterator[list[int]]:
        flat, borders = self.flat.tolist(), self.borders.tolist()
        return (flat[start:end] for start, end in pairwise(borders))


def pack(lengths: Sequence[int] | np.ndarray, capacity: int) -> Packs:
    """Group document indices into packs that fit `capacity` tokens, longest first.

    Args:
        lengths: tokens per document, each in [1, capacity].

    Returns:
        Indices by pack; every index exactly once.

    Raises:
        DataError: a document is longer than `capacity`.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    if not len(sizes):
        return Packs(np.empty(0, np.int64), np.zeros(1, np.int64))
    _refuse_misfits(sizes, capacity)
    counts = np.bincount(sizes, minlength=capacity + 1)
    fills, ranges = _best_fit(counts, capacity)
    return _place(_longest_first(sizes, capacity), fills, ranges)


def pack_singly(num_documents: int) -> Packs:
    """One document a pack: what `sample_packing: false` means."""
    return Packs(np.arange(num_documents), np.arange(num_documents + 1))


# Packs with consecutive numbers and the same lengths in each: first pack, number of packs, documents in each.
_Range = tuple[int, int, int]
# The next documents go into a range: first pack, number of packs, how many documents each takes, and has already.
_Fill = tuple[int, int, int, int]


def _refuse_misfits(sizes: np.ndarray, capacity: int) -> None:
    longest, shortest = int(sizes.argmax()), int(sizes.argmin())
    if sizes[longest] > capacity:
        raise DataError(
            f"document {longest} is longer than a pack of {capacity} tokens, got {sizes[longest]}",
            help="raise sequence_len, or set excess_length_strategy to drop or truncate",
        )
    if sizes[shortest] < 1:
        raise DataError(f"document {shortest} has no tokens, got length {sizes[shortest]}", help="leave the row out")


def _longest_first(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """Indices by falling length, equal lengths in their own order (numpy sorts 16-bit keys by radix)."""
    keys = capacity - sizes
    return np.argsort(keys.astype(np.uint16) if capacity < 1 << 16 else keys, kind="stable")


def _best_fit(counts: np.ndarray, capacity: int) -> tuple[list[_Fill], list[_Range]]:
    """Which packs take how many documents, in the order of falling length; and all packs in the end.

    Packs wait in `by_room[free room]`; bit r of `rooms` says whether any waits there, so the tightest room that
    holds a length is one shift and one lowest-set-bit away.
    """
    by_room: list[list[_Range]] = [[] for _ in range(capacity + 1)]
    rooms, num_packs = 0, 0
    fills: list[_Fill] = []
    sizes = np.flatnonzero(counts)[::-1]
    for length, left in zip(sizes.tolist(), counts[sizes].tolist(), strict=True):
        while left:
            fitting = rooms >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                first, size, documents = by_room[room].pop()
                if not by_room[room]:
                    rooms ^= 1 << room
            else:
                room, first, documents = capacity, num_packs, 0
                size = -(-left // (capacity // length))
                num_packs += size
            most = room // length
            full = min(size, left // most)  # packs that take as many as they hold; then one takes the rest
            parts = [(full, most)] if full else []
            if full < size:
                rest = left - full * most
                parts += [(1, rest), (size - full - 1, 0)] if rest else [(size - full, 0)]
            for part, each in parts:
                if part:
                    if each:
                        fills.append((first, part, each, documents))
                        left -= part * each
                    new_room = room - each * length
                    rooms |= 1 << new_room
                    by_room[new_room].append((first, part, documents + each))
                    first += part
    return fills, [range_ for waiting in by_room for range_ in waiting]


def _place(order: np.ndarray, fills: list[_Fill], ranges: list[_Range]) -> Packs:
    """Write every document of `order` to its place, all packs at once."""
    first, num_packs, num_documents = np.array(ranges).T
    sizes = np.empty(int(num_packs.sum()), np.int64)
    sizes[_spread(first, num_packs)] = np.repeat(num_documents, num_packs)
    borders = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=borders[1:])
    first, num_packs, each, already = np.array(fills).T
    start = borders[_spread(first, num_packs)] + np.repeat(already, num_packs)  # (visited packs,)
    place = _spread(start, np.repeat(each, num_packs))  # (documents,)
    flat = np.empty(len(order), np.int64)
    flat[place] = order
    return Packs(flat, borders)


def _spread(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The ranges first[i], first[i]+1, ... of count[i] numbers, end to end."""
    ends = np.cumsum(count)
    spread: np.ndarray = np.arange(ends[-1]) + np.repeat(first - ends + count, count)
    return spread
