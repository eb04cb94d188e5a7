"""Work on a part that is not done: documents and counts are written out now and then, and taken up after a kill.

In a folder beside the cache's, under the lock of that cache folder:
    chunk-N/        the documents added since the chunk before, in the arrays of `store.py`, and the rows left out
    progress.json   how far the rows were read when the last chunk was written, and every count up to there
`progress.json` is replaced in one step, after its chunk is whole; a chunk that it does not know of is written anew.
Tokens leave memory with each chunk, so that a set larger than memory can be prepared.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ftkit.data.accounts import Rejected, SetAccount, write_rejected
from ftkit.data.proof import PromptSample
from ftkit.data.store import ARRAYS, ExampleStore, StoreWriter, open_store, save_store

PROGRESS = "progress.json"
REJECTED = "rejected.jsonl"
ROWS_PER_CHUNK = 8192  # some seconds of work
TOKENS_PER_CHUNK = 1 << 22  # 20 MB, however long the rows


@dataclass
class Work:
    """A part in the making: what is counted, and the documents so far.

    Args:
        folder: where it is written out; None keeps everything in memory.
        accounts: of each data set begun; the last may not be done.
        done: data sets that are done.
        sample: of the data set in work.
        resumed: rows that were taken over from a run that was killed.
        whole: where `store` laid all documents, if they had been written out.
        code: of this version, kept with the work: another version cannot go on with it.
    """

    folder: Path | None = None
    accounts: list[SetAccount] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    done: int = 0
    sample: PromptSample = field(default_factory=PromptSample)
    writer: StoreWriter = field(default_factory=StoreWriter)
    resumed: int = 0
    code: str = ""
    whole: Path | None = None
    _chunks: int = 0
    _rows_saved: int = 0
    _rejected_saved: int = 0

    @property
    def rows(self) -> int:
        """Rows read so far, over all data sets."""
        return sum(account.rows for account in self.accounts)

    def begin(self, account: SetAccount) -> SetAccount:
        """The account of the next data set: the one taken over if it was begun before, else `account`."""
        if len(self.accounts) == self.done:
            self.accounts.append(account)
            self.sample = PromptSample()
        return self.accounts[self.done]

    def end(self) -> None:
        """The data set in work is done."""
        self.done += 1

    def save(self) -> None:
        """Write out what was added, if it is enough to be worth it. To be called between rows."""
        is_due = self.rows - self._rows_saved >= ROWS_PER_CHUNK or self.writer.num_tokens >= TOKENS_PER_CHUNK
        if self.folder is not None and is_due:
            self._write()

    def store(self) -> ExampleStore:
        """All documents."""
        if self.folder is None or not self._chunks:
            return self.writer.take()
        self._write()
        self.whole = whole = self.folder / "whole"
        whole.mkdir(exist_ok=True)
        _join([self.folder / f"chunk-{number}" for number in range(self._chunks)], whole)
        return open_store(whole, self.writer.files)

    def discard(self) -> None:
        """Take away what was written out."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self) -> None:
        assert self.folder is not None
        chunk = self.folder / f"chunk-{self._chunks}"
        chunk.mkdir(parents=True, exist_ok=True)
        save_store(self.writer.take(), chunk)
        write_rejected(chunk / REJECTED, self.rejected[self._rejected_saved :])
        self._chunks, self._rows_saved, self._rejected_saved = self._chunks + 1, self.rows, len(self.rejected)
        progress = {
            "code": self.code,
            "accounts": [asdict(account) for account in self.accounts],
            "rejected": len(self.rejected),
            "done": self.done,
            "sample": {"rows": self.sample.rows, "seen": list(self.sample.seen.items())},
            "files": self.writer.files,
            "chunks": self._chunks,
        }
        passing = self.folder / f".{PROGRESS}"
        passing.write_text(json.dumps(progress), encoding="utf8")
        passing.replace(self.folder / PROGRESS)


def take_up(folder: Path, *, unique: bool, code: str) -> Work:
    """The work that a killed run left in `folder`, or work not begun; what the disk spoilt is thrown away.

    Args:
        unique: documents are asked for being new, so those written out have to be known.
        code: of this version.
    """
    try:
        return _read(folder, unique=unique, code=code)
    except FileNotFoundError:
        return Work(folder, code=code)
    except (OSError, EOFError, ValueError, TypeError, KeyError):
        shutil.rmtree(folder)
        return Work(folder, code=code)


def _read(folder: Path, *, unique: bool, code: str) -> Work:
    progress = json.loads((folder / PROGRESS).read_text(encoding="utf8"))
    for number in range(progress["chunks"]):
        open_store(folder / f"chunk-{number}", ())
    rejected = [row for number in range(progress["chunks"]) for row in _left_out(folder / f"chunk-{number}" / REJECTED)]
    if len(rejected) != progress["rejected"]:
        raise ValueError(f"rows left out are missing, got {folder}")
    seen = {_tuples(shape): count for shape, count in progress["sample"]["seen"]}
    work = Work(
        folder,
        [SetAccount(**account) for account in progress["accounts"]],
        rejected,
        progress["done"],
        PromptSample(seen, progress["sample"]["rows"]),
        StoreWriter(_files={file: number for number, file in enumerate(progress["files"])}),
        code=code,
        _chunks=progress["chunks"],
    )
    work.resumed = work._rows_saved = work.rows
    work._rejected_saved = len(rejected)
    if unique:
        for tokens, trained in _documents(folder, work._chunks):
            work.writer.is_new(tokens, trained)
    return work


def _left_out(file: Path) -> list[Rejected]:
    if not file.is_file():
        return []
    return [Rejected(**json.loads(line)) for line in file.read_text(encoding="utf8").split("\n") if line]


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _documents(folder: Path, num_chunks: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number in range(num_chunks):
        chunk = open_store(folder / f"chunk-{number}", ())
        for start, end in zip(chunk.borders[:-1].tolist(), chunk.borders[1:].tolist(), strict=True):
            yield chunk.tokens[start:end], chunk.trained[start:end]


def _join(chunks: list[Path], whole: Path) -> None:
    """Lay the arrays of the chunks end to end, with no more than one of them in memory."""
    for name in ARRAYS:
        parts = [_mapped(chunk, name) for chunk in chunks]
        num_first = 1 if name == "borders" else 0  # each chunk's borders begin with a 0 of its own
        num = num_first + sum(len(part) - num_first for part in parts)
        shape = (num, *parts[0].shape[1:])
        joined = np.lib.format.open_memmap(whole / f"{name}.npy", "w+", parts[0].dtype, shape)
        joined[:num_first] = 0
        position, start = num_first, 0
        for part in parts:
            added = part[num_first:] + start if num_first else part
            joined[position : position + len(added)] = added
            position, start = position + len(added), start + int(part[-1]) if num_first else 0
        joined.flush()


def _mapped(chunk: Path, name: str) -> np.ndarray:
    array: np.ndarray = getattr(open_store(chunk, ()), name)
    return array
