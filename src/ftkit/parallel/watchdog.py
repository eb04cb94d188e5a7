"""Whether a run still moves, and where its ranks stand when it does not.

The run beats for every piece of work it finishes. When neither this rank nor, as far as is known, any other has
finished one for the timeout, each rank's Python stacks are written down and the run ends. Nothing here asks the
backend: a collective that waits for ever looks like any other.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_SECONDS = 1800  # of torch.distributed's and transformers' ddp_timeout too


@dataclass(slots=True)
class Heartbeat:
    """What this rank did last. Called for each piece of work that is done; costs less than a microsecond.

    Args:
        what: the work, in words.
        count: beats so far.
        at: seconds on the monotonic clock.
    """

    what: str = "the start"
    count: int = 0
    at: float = field(default_factory=time.monotonic)

    def __call__(self, what: str) -> None:
        """Note that `what` is done."""
        self.what, self.at = what, time.monotonic()
        self.count += 1


def stall_text(heartbeat: Heartbeat, seconds: float, files: Path) -> str:
    """What a rank says that nothing moves any more."""
    return (
        f"nothing has moved for {seconds:g} s, the last here was {heartbeat.what}\n"
        f"help: {files} hold the stacks of the ranks: look for one that is not waiting for the others; "
        f"if the work only takes long, raise ddp_timeout"
    )


def dump_stacks(folder: Path, rank: int) -> None:
    """Write the Python stacks of all threads to a file of this rank, and to stderr with the rank before each line."""
    file = folder / stacks_name(rank)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("w", encoding="utf8") as out:
            faulthandler.dump_traceback(out, all_threads=True)
        text = file.read_text(encoding="utf8")
    except OSError as full:  # a full disk must not hide the stacks
        sys.stderr.write(f"rank {rank}| {file}: {full}\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        return
    sys.stderr.write("".join(f"rank {rank}| {line}\n" for line in text.splitlines()))
    sys.stderr.flush()


def stacks_name(rank: int | str) -> str:
    """The file of a rank's stacks, in output_dir."""
    return f"stacks-rank-{rank}.txt"
