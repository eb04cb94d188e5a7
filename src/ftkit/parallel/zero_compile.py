"""DeepSpeed's one compiled part on CPUs, built before ranks need it and safe from processes that were killed.

Between CPU ranks DeepSpeed 0.19.8 reduces through shared memory, with a library that torch compiles at first use. torch
guards the folder by a file that a killed process leaves behind, and every later run waits for it without end. So the
library is built ahead, under a lock that a process loses when it dies, and a file left behind is taken away.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import ModuleType

import torch.distributed as dist
from filelock import FileLock

from ftkit.parallel.backend import World

LEFT_BEHIND_SECONDS = 10  # another run on this machine, loading what is built, holds the file for less


def compile_ahead(deepspeed: ModuleType, world: World) -> None:
    """Build what DeepSpeed compiles on a CPU, one rank after the other; every rank calls it."""
    if world.device.type != "cpu":
        return
    cache = Path(os.environ.get("FTKIT_CACHE") or Path.home() / ".cache" / "ftkit")
    folder = Path(os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(cache / "torch_extensions")))
    folder.mkdir(parents=True, exist_ok=True)
    builder = deepspeed.accelerator.get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is not None and deepspeed.ops.__compatible_ops__.get(builder.NAME, False):
        with FileLock(folder / "ftkit.lock"):
            take_away(folder)
            builder.load(verbose=False)
    dist.barrier()  # from here on nobody of this run takes a file of another rank for one left behind


def take_away(folder: Path) -> None:
    """Remove the guarding files that nobody holds; one that is fresh may be another run's and is waited for."""
    for guard in folder.rglob("lock"):
        while (age := age_of(guard)) is not None and age < LEFT_BEHIND_SECONDS:
            time.sleep(0.2)
        guard.unlink(missing_ok=True)


def age_of(file: Path) -> float | None:
    """Seconds since `file` was written; None once it is gone."""
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return None
