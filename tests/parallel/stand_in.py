"""A run in miniature, for tests of launching: a guarded loop of all-reduces in which a rank comes to harm.

    python stand_in.py HARM RANK FOLDER [SECONDS]

At the third step RANK comes to HARM; `none` lets all finish. SECONDS is the watchdog's. Each rank leaves its pid in
FOLDER first.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ftkit.cli.main import guarded
from ftkit.cli.rank import as_rank
from ftkit.errors import DataError


def main() -> int:
    """Do as the command line says."""
    import torch
    import torch.distributed as dist

    from ftkit.parallel.backend import World
    from ftkit.parallel.guard import Guard

    harm, unlucky, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    print(f"rank {rank} says hello", flush=True)
    with Guard(World(rank, size, rank, size, torch.device("cpu")), seconds, folder) as beat:
        if harm == "early":
            raise DataError("the rows are bad, got 7", where="rows.jsonl:3", help="mend them")
        dist.init_process_group("gloo")
        for step in range(6):
            if step == 2 and (rank == unlucky or harm == "stuck"):
                come_to(harm)
            dist.all_reduce(torch.ones(4))
            beat(f"step {step}")
            (folder / f"stepped-{rank}").touch()
            if harm == "forever":
                time.sleep(600) if rank == unlucky else dist.barrier()
        dist.destroy_process_group()
    return 0


def come_to(harm: str) -> None:
    """What may happen to a rank."""
    if harm == "data":
        raise DataError("the rows are bad, got 7", where="rows.jsonl:3", help="mend them")
    if harm == "bug":
        raise ZeroDivisionError("a bug of ours")
    if harm == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if harm == "exit":
        os._exit(9)
    if harm == "stuck":
        import torch
        import torch.distributed as dist

        dist.recv(torch.ones(4), (dist.get_rank() + 1) % dist.get_world_size())
    if harm == "hang":
        time.sleep(600)


if __name__ == "__main__":
    sys.exit(guarded(lambda: as_rank(main, os.environ)))
