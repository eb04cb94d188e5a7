"""Prepared examples: flat arrays, memory mapped from disk or in memory, and views that pick some of them.

On disk, in one folder:
    tokens.npy   (all tokens,)       int32, document after document
    trained.npy  (all tokens,)       bool, whether a token is a target
    borders.npy  (documents + 1,)    int64, where each document begins in the two above
    origins.npy  (documents, 2)      int32, index into the list of files, line
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path

import numpy as np

from ftkit.data.values import IGNORED, Example, Where


@dataclass(frozen=True, eq=False)
class ExampleStore(Sequence[Example]):
    """Tokenized documents by index.

    Args:
        files: names that `origins` counts into.
        chosen: which documents of the arrays this view holds, in its order.
    """

    tokens: np.ndarray
    trained: np.ndarray
    borders: np.ndarray
    origins: np.ndarray
    files: tuple[str, ...]
    chosen: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, int64."""
        return np.asarray(self.borders[self.chosen + 1] - self.borders[self.chosen])

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]  # one document at a time; `select` takes many
        number = int(self.chosen[index])
        start, end = int(self.borders[number]), int(self.borders[number + 1])
        ids = np.array(self.tokens[start:end])
        file, line = self.origins[number].tolist()
        labels = np.where(self.trained[start:end], ids, np.int32(IGNORED))
        return Example(ids, labels, Where(self.files[file], line))

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def select(self, indices: np.ndarray) -> ExampleStore:
        """A view of some documents of this one."""
        return ExampleStore(self.tokens, self.trained, self.borders, self.origins, self.files, self.chosen[indices])

    def digest(self) -> str:
        """The same for the same documents in the same order, wherever their rows came from.

        It reads the whole arrays, about a gigabyte a second, documents outside this view among them.
        """
        hasher = sha256()
        for values in (self.tokens, self.trained, self.borders, self.chosen):
            hasher.update(f"{values.dtype} {values.shape}".encode())
            hasher.update(np.ascontiguousarray(values).data)
        return hasher.hexdigest()


@dataclass
class StoreWriter:
    """Collects documents in growing flat buffers: five bytes a token, nothing a document but its border."""

    _tokens: array[int] = field(default_factory=lambda: array("i"))
    _trained: bytearray = field(default_factory=bytearray)
    _borders: array[int] = field(default_factory=lambda: array("q", [0]))
    _origins: array[int] = field(default_factory=lambda: array("i"))
    _files: dict[str, int] = field(default_factory=dict)
    _seen: set[bytes] = field(default_factory=set)

    def add(self, tokens: np.ndarray, trained: np.ndarray, where: Where) -> None:
        """Take one document: int32 ids and a bool for each."""
        self._tokens.frombytes(tokens.astype(np.int32).tobytes())
        self._trained += trained.astype(np.bool_).tobytes()
        self._borders.append(len(self._tokens))
        self._origins.extend((self._files.setdefault(where.file, len(self._files)), where.line))

    def is_new(self, tokens: np.ndarray, trained: np.ndarray) -> bool:
        """Whether this was not asked before of a document equal in tokens and mask (16 bytes are kept of each)."""
        known = len(self._seen)
        self._seen.add(blake2b(tokens.tobytes() + trained.tobytes(), digest_size=16).digest())
        return len(self._seen) > known

    @property
    def files(self) -> tuple[str, ...]:
        """The files seen so far, in the order of their index."""
        return tuple(self._files)

    @property
    def num_tokens(self) -> int:
        """Tokens held."""
        return len(self._tokens)

    def take(self) -> ExampleStore:
        """What was added since the last call, which the writer then no longer holds."""
        tokens, trained, borders, origins = self._tokens, self._trained, self._borders, self._origins
        self._tokens, self._trained, self._origins = array("i"), bytearray(), array("i")
        self._borders = array("q", [0])
        return _over(tokens, trained, borders, origins, self.files)

    def in_memory(self) -> ExampleStore:
        """Everything added so far as a store."""
        return _over(self._tokens[:], self._trained[:], self._borders[:], self._origins[:], self.files)


def _over(
    tokens: array[int], trained: bytearray, borders: array[int], origins: array[int], files: tuple[str, ...]
) -> ExampleStore:
    """A store over these buffers, which must not grow any more."""
    num = len(borders) - 1
    return ExampleStore(
        np.frombuffer(tokens, np.int32),
        np.frombuffer(trained, np.bool_),
        np.frombuffer(borders, np.int64),
        np.frombuffer(origins, np.int32).reshape(-1, 2),
        files,
        np.arange(num),
    )


ARRAYS = ("tokens", "trained", "borders", "origins")


def save_store(store: ExampleStore, folder: Path, made: Path | None = None) -> None:
    """Write the four arrays of a whole store into `folder`.

    Args:
        made: a folder on the same disk where they lie already and from which they are moved, maps and all.
    """
    for name in ARRAYS:
        file = f"{name}.npy"
        if made is not None:
            try:
                (made / file).rename(folder / file)
                continue
            except OSError:  # Windows moves no file that is mapped
                pass
        np.save(folder / file, getattr(store, name))


def open_store(folder: Path, files: Sequence[str]) -> ExampleStore:
    """Map the arrays that `save_store` wrote; nothing is read until a document is asked for.

    Raises:
        OSError, EOFError, ValueError: one is missing or cut off, or they do not fit together.
    """
    tokens, trained, borders, origins = (_map(folder / f"{name}.npy") for name in ARRAYS)
    if not len(tokens) == len(trained) == borders[-1] or len(origins) != len(borders) - 1:
        raise ValueError(f"the arrays do not fit together, got {folder}")
    return ExampleStore(tokens, trained, borders, origins, tuple(files), np.arange(len(borders) - 1))


def _map(path: Path) -> np.ndarray:
    """A memory map; numpy cannot map an empty array, so that one is read."""
    try:
        mapped: np.ndarray = np.load(path, mmap_mode="r")
    except ValueError:
        mapped = np.load(path)
    return mapped
