"""Checkpoints that are whole or not there, and the way back from one.

    checkpoint-120/
        trainer.json     step, counters of the loop, facts that must be the same on resume
        shards/          trainable parameters and optimizer state, as the backend keeps them
        ...              the adapter, or the model, in its usual files (`write_model`)

Everything is written to `checkpoint-120.partial`, brought to the disk (fsync) and renamed: a kill at any instant leaves
the checkpoints before it, and a name without `.partial` is proof of a whole one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ftkit.errors import CheckpointError
from ftkit.parallel.backend import Backend
from ftkit.save.state import TrainerState

TRAINER = "trainer.json"
FORMAT = 1  # of trainer.json; another number is refused
PARTIAL = ".partial"


@dataclass(frozen=True)
class Checkpoints:
    """Writes and reads the checkpoints of one run.

    Args:
        folder: where they lie (`output_dir`).
        backend: holds parameters and optimizer state.
        identity: facts a resumed run must share, by the recipe's key, such as seed or number of documents.
        limit: whole checkpoints to keep, at least 1 (`save_total_limit`); None for all.
        write_model: writes the files people load elsewhere into a folder; every rank calls it.
    """

    folder: Path
    backend: Backend
    identity: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    write_model: Callable[[Path], None] | None = None

    def save(self, state: TrainerState) -> Path:
        """Write the checkpoint of `state`; it is whole, and old ones are gone, when this returns."""
        whole = self.folder / f"checkpoint-{state.step}"
        partial = whole.with_name(whole.name + PARTIAL)
        is_main = self.backend.world.is_main
        if is_main:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self.wait_for_all()
        self.backend.save_shards(partial / "shards")
        if self.write_model is not None:
            self.write_model(partial)
        self.wait_for_all()
        if is_main:
            write_trainer(partial / TRAINER, state, self.identity)
            put_in_place(partial, whole)
            self.remove_old(whole)
        self.wait_for_all()
        return whole

    def resume(self, folder: Path) -> TrainerState:
        """Put parameters and optimizer state back, and return where the run stood.

        Raises:
            CheckpointError: the checkpoint is missing, not whole, or of another run.
        """
        saved = read_trainer(folder)
        theirs, mine = saved["identity"], json.loads(json.dumps(dict(self.identity)))
        different = [key for key in mine if key in theirs and mine[key] != theirs[key]]
        if different:
            lines = "\n  ".join(f"{key}: {theirs[key]} in the checkpoint, got {mine[key]}" for key in different)
            raise CheckpointError(
                f"the checkpoint is of another run\n  {lines}",
                where=str(folder),
                help="change these keys back, or start anew without resume_from_checkpoint",
            )
        self.backend.load_shards(folder / "shards")
        return TrainerState(**saved["state"])

    def remove_old(self, newest: Path) -> None:
        """Keep the last `limit` checkpoints, by the time they were written, and always `newest`."""
        if self.limit is None:
            return
        old = [path for path in whole_checkpoints(self.folder) if path != newest]
        for path in old[: max(0, len(old) + 1 - max(self.limit, 1))]:
            # renamed first: a kill while files go must not leave a half empty folder under a whole one's name
            doomed = path.with_name(path.name + PARTIAL)
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
            shutil.rmtree(doomed)

    def wait_for_all(self) -> None:
        """No rank goes on before every rank is here."""
        self.backend.reduce(torch.zeros((), device=self.backend.world.device), "sum").item()


def find_checkpoint(output_dir: Path, wanted: str | bool | None, *, automatic: bool = False) -> Path | None:
    """Return the checkpoint a recipe wants to go on from; None to start anew.

    Args:
        output_dir: where `True` looks.
        wanted: `resume_from_checkpoint`: a folder, or True for the one in `output_dir` that was written last.
        automatic: `auto_resume_from_checkpoints`: as True, but nothing there is no error.

    Raises:
        CheckpointError: what is asked for is not there or not whole.
    """
    if isinstance(wanted, str):
        read_trainer(Path(wanted))
        return Path(wanted)
    if not wanted and not automatic:
        return None
    found = whole_checkpoints(output_dir)
    if not found and wanted:
        raise CheckpointError(
            "there is no whole checkpoint to resume from",
            where=f"output_dir: {output_dir}",
            help="set resume_from_checkpoint: false to start anew",
        )
    return found[-1] if found else None


def whole_checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in `folder`, the one written last at the end.

    By time, not by step: after going back to step 100 the new checkpoint-150 is newer than the old checkpoint-200.
    """
    pattern = re.compile(r"checkpoint-\d+")
    paths = [path for path in folder.glob("checkpoint-*") if pattern.fullmatch(path.name)]
    return sorted((p for p in paths if (p / TRAINER).is_file()), key=lambda p: read_trainer(p)["written"])


def write_trainer(path: Path, state: TrainerState, identity: Mapping[str, Any]) -> None:
    """Write trainer.json. Floats come back bit for bit: Python prints the shortest digits that do."""
    record = {
        "format": FORMAT,
        "written": time.time_ns(),
        "state": dataclasses.asdict(state),
        "identity": dict(identity),
    }
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf8")


def read_trainer(folder: Path) -> dict[str, Any]:
    """Read trainer.json of a whole checkpoint.

    Raises:
        CheckpointError: the folder is missing, not whole, or of a version this ftkit cannot read.
    """
    path = folder / TRAINER
    if not folder.is_dir():
        raise CheckpointError("no such checkpoint", where=str(folder), help="give a folder checkpoint-N, or true")
    if folder.name.endswith(PARTIAL) or not path.is_file():
        raise CheckpointError(
            "the checkpoint is not whole, its run ended while it was written",
            where=str(folder),
            help="give an earlier one, or resume_from_checkpoint: true for the newest whole one",
        )
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    except ValueError as broken:
        raise CheckpointError(f"not readable: {broken}", where=str(path), help="give an earlier checkpoint") from None
    if record.get("format") != FORMAT:
        raise CheckpointError(
            f"format {FORMAT} is needed, got {record.get('format')}", where=str(path), help="use the ftkit it is from"
        )
    return record


def put_in_place(partial: Path, whole: Path) -> None:
    """Bring everything in `partial` to the disk and give it its name."""
    for directory, _, files in os.walk(partial, topdown=False):
        for name in files:
            sync(Path(directory, name))
        sync(Path(directory))
    if whole.exists():  # an earlier run's; moved away, not deleted, until the new one has its name
        old = whole.with_name(f"{whole.name}.old{PARTIAL}")
        shutil.rmtree(old, ignore_errors=True)
        whole.rename(old)
        partial.rename(whole)
        shutil.rmtree(old)
    else:
        partial.rename(whole)
    sync(whole.parent)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
