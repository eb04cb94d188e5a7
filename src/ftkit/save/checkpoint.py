"""Checkpoints: written beside their place, renamed when whole, read back exactly.

    output_dir/checkpoint-12/
        shards/                      trainable parameters and optimizer state (the backend's)
        adapter_model.safetensors    and what else `extra` writes, so that PEFT can load the folder as it stands
        trainer_state.json           the step, and which recipe this is

`checkpoint-12.partial` is being written or deleted; it is never read. A kill at any instant leaves every folder that
had its final name whole: the rename is the last thing that happens.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any

import torch

from ftkit.errors import CheckpointError
from ftkit.parallel.backend import Backend
from ftkit.save.state import TrainerState
from ftkit.save.writing import writing

STATE_FILE, SHARDS, PARTIAL, REPLACED = "trainer_state.json", "shards", ".partial", ".replaced"
OTHER = ".other"
FORMAT = 1  # of trainer_state.json; another number is refused
NAME = re.compile(rf"checkpoint-(\d+)({re.escape(REPLACED)})?")


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run; every rank has one and calls the same methods in the same order.

    Args:
        folder: the run's output_dir.
        identity: what of the recipe must be the same to resume, from `save.identity.identity`.
        limit: newest checkpoints kept; None keeps all.
        extra: writes more files into a checkpoint's folder; called on every rank, since it may gather tensors.
        say: told what a resumed run cannot take up exactly as it was.
    """

    folder: Path
    backend: Backend
    identity: Mapping[str, str]
    limit: int | None = None
    extra: Callable[[Path], None] | None = None
    say: Callable[[str], None] = lambda note: None

    def save(self, state: TrainerState) -> Path:
        """Write the checkpoint of `state.step` and delete the oldest beyond the limit."""
        final = self.folder / f"checkpoint-{state.step}"
        partial = final.with_name(final.name + PARTIAL)
        try:
            with writing("the checkpoint", final):
                self.write(state, partial, final)
        except CheckpointError:  # a disk that is full gets its room back
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self.wait_for_all()
        return final

    def write(self, state: TrainerState, partial: Path, final: Path) -> None:
        """Write `partial`, and rename it to `final`."""
        if self.backend.world.is_main:
            remove_left_overs(self.folder)
            partial.mkdir(parents=True)
        self.wait_for_all()
        self.backend.save_shards(partial / SHARDS)
        if self.extra is not None:
            self.extra(partial)
        self.wait_for_all()
        if self.backend.world.is_main:
            write_record(partial, state, self.identity)
            sync(partial)
            put_in_place(partial, final)
            self.delete_oldest(final)

    def resume(self, folder: Path) -> TrainerState:
        """Put parameters and optimizer state of the checkpoint `folder` back, and return where the run stood.

        Raises:
            CheckpointError: it is not whole, or belongs to another recipe; names everything that differs.
        """
        record = read_record(folder)
        refuse_other_recipe(folder, record["identity"], self.identity)
        known = {field.name for field in fields(TrainerState)}
        state = TrainerState(**{key: value for key, value in record["state"].items() if key in known})
        for note in self.backend.load_shards(folder / SHARDS):
            self.say(note)
        return state

    def delete_oldest(self, newest: Path) -> None:
        """Keep `limit` checkpoints, `newest` always among them."""
        if self.limit is None:
            return
        others = [folder for folder in whole_checkpoints(self.folder) if folder != newest]
        for folder in others[: max(0, len(others) + 1 - max(1, self.limit))]:
            doomed = folder.with_name(folder.name + PARTIAL)  # half deleted, it must not look whole
            shutil.rmtree(doomed, ignore_errors=True)
            folder.rename(doomed)
            shutil.rmtree(doomed)

    def wait_for_all(self) -> None:
        """Let no rank go on before all are here."""
        self.backend.reduce(torch.zeros((), device=self.backend.world.device), "max")


def find_checkpoint(
    folder: Path,
    resume: str | bool | None,
    *,
    auto: bool = False,
    on_skip: Callable[[CheckpointError], None] = lambda problem: None,
) -> Path | None:
    """Return the checkpoint to resume from, or None to start anew.

    Args:
        folder: the run's output_dir.
        resume: `resume_from_checkpoint`: a folder, or true for the newest whole one.
        auto: `auto_resume_from_checkpoints`: the newest whole one if there is one.
        on_skip: told of each folder that is called like a checkpoint and is passed over.

    Raises:
        CheckpointError: the one that was asked for is not there or not whole.
    """
    if isinstance(resume, str):
        read_record(Path(resume))
        return Path(resume)
    if not resume and not auto:
        return None
    whole = whole_checkpoints(folder, on_skip)
    if resume and not whole:
        raise CheckpointError(
            "no whole checkpoint to resume from",
            where=str(folder),
            help="set auto_resume_from_checkpoints: true to start anew where there is none",
        )
    return whole[-1] if whole else None


def whole_checkpoints(folder: Path, on_skip: Callable[[CheckpointError], None] = lambda problem: None) -> list[Path]:
    """Whole checkpoints in `folder`, the one written last at the end; other tools' and broken ones are passed over.

    By time, not by step: after going back to step 100, the new checkpoint-150 is newer than the old checkpoint-200.
    """
    found: dict[int, tuple[float, Path]] = {}
    for path in sorted(folder.glob("checkpoint-*"), reverse=True):  # `.replaced` first, so that the other wins
        if match := NAME.fullmatch(path.name):
            try:
                found[int(match[1])] = float(read_record(path)["written"]), path
            except CheckpointError as problem:
                on_skip(problem)
    return [path for _, path in sorted(found.values())]


def write_record(folder: Path, state: TrainerState, identity: Mapping[str, str]) -> None:
    """Write trainer_state.json. Its floats come back bit for bit: Python prints the shortest digits that do."""
    record = {"format": FORMAT, "written": time.time(), "state": asdict(state), "identity": dict(identity)}
    (folder / STATE_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")


def read_record(folder: Path) -> dict[str, Any]:
    """Read trainer_state.json of a whole checkpoint.

    Raises:
        CheckpointError: the folder is missing, not whole, or not readable by this ftkit.
    """
    file = folder / STATE_FILE
    if not folder.is_dir():
        raise CheckpointError("no such checkpoint", where=str(folder), help="give a folder checkpoint-N, or true")
    if folder.name.endswith(PARTIAL) or not file.is_file():
        raise CheckpointError(
            "the checkpoint is not whole",
            where=str(folder),
            help="give another one, or resume_from_checkpoint: true for the newest whole one",
        )
    try:
        record: Any = json.loads(file.read_text(encoding="utf8"))
    except (OSError, ValueError) as broken:
        raise CheckpointError(f"cannot be read: {broken}", where=str(file), help="give another checkpoint") from None
    if not isinstance(record, dict) or "format" not in record:
        raise CheckpointError(
            "the checkpoint is not one of ftkit's", where=str(file), help="give another one, or move it elsewhere"
        )
    if record["format"] != FORMAT:
        raise CheckpointError(
            f"the checkpoint has format {record['format']}, this ftkit reads {FORMAT}",
            where=str(file),
            help="resume with the ftkit that wrote it (run.json names its version)",
        )
    wanted: dict[str, type | tuple[type, ...]] = {"written": (int, float), "identity": dict, "state": dict}
    if broken_keys := [key for key, kind in wanted.items() if not isinstance(record.get(key), kind)]:
        raise CheckpointError(
            f"the checkpoint is broken, it lacks {', '.join(broken_keys)}",
            where=str(file),
            help="give another checkpoint",
        )
    checked: dict[str, Any] = record
    return checked


def refuse_other_recipe(folder: Path, then: Mapping[str, object], now: Mapping[str, str]) -> None:
    """Raise one error that names every key in which the checkpoint's recipe differs from this one."""
    differing = [f"{key}: {then[key]} then, {now[key]} now" for key in now if key in then and then[key] != now[key]]
    if differing:
        raise CheckpointError(
            "the checkpoint was made by another recipe\n  " + "\n  ".join(differing),
            where=str(folder),
            help="change these keys back; to go on with other settings, start a new run whose lora_model_dir (adapter)"
            " or base_model (model) is the old output_dir",
        )


def remove_left_overs(folder: Path) -> None:
    """Delete what a killed run left half written or half deleted."""
    for path in folder.glob(f"checkpoint-*{PARTIAL}"):
        shutil.rmtree(path)
    for path in folder.glob(f"checkpoint-*{REPLACED}"):
        if path.with_name(path.name.removesuffix(REPLACED)).exists():
            shutil.rmtree(path)


def put_in_place(partial: Path, final: Path) -> None:
    """Rename `partial` to `final`; an older `final` stays readable until the new one is there.

    What is called like it and is not ftkit's is kept, as `checkpoint-12.other`.
    """
    replaced = final.with_name(final.name + REPLACED)
    if final.exists() and not is_whole(final):
        final.rename(unused_name(final.with_name(final.name + OTHER)))
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    partial.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def is_whole(folder: Path) -> bool:
    """Whether `folder` is a checkpoint that this ftkit could resume from."""
    try:
        read_record(folder)
    except CheckpointError:
        return False
    return True


def unused_name(path: Path) -> Path:
    """`path`, or with the lowest number behind it that no one has."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return path if not path.exists() else next(name for name in numbered if not name.exists())


def sync(folder: Path) -> None:
    """Have every file below `folder` on the disk: a rename must not become durable before what it names."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_folder(path)


def sync_folder(folder: Path) -> None:
    """Have the names in `folder` on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
