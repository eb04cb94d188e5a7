"""Two real processes over gloo that run cases one after the other, for the tests of all backends.

Starting processes and importing torch costs more than a case, so one pair does everything a backend has to show.
As a script it is one rank: `pair.py JOB RESULTS`, where JOB is a pickled list of (name, function, arguments).
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PATHS = (HERE.parents[1] / "src", HERE.parent, HERE.parent / "model", HERE)


def run_pair(
    tasks: Mapping[str, tuple[Callable[..., Any], Sequence[Any]]],
    folder: Path,
    *,
    size: int = 2,
    timeout: float = 1200,
    device: str = "cpu",
) -> dict[str, list[Any]]:
    """Call each task's function as `function(world, *arguments)` on every rank; return results by name and rank.

    On `device` cuda all ranks share the first GPU: over gloo if they are several, which NCCL refuses, else over NCCL.
    A task that raises gives the exception's text, as `Failed`, on every rank, and the tasks behind it do not run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job = folder / "job.pickle"
    job.write_bytes(pickle.dumps(dict(tasks)))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    processes = []
    for rank in range(size):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, PATHS), os.environ.get("PYTHONPATH", "")]),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank) if device == "cpu" else "0",  # all on the first GPU
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, str(HERE / "pair.py"), str(job), str(folder / f"rank{rank}.pickle"), device]
        with (folder / f"rank{rank}.log").open("w") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    try:
        for process in processes:
            process.wait(timeout)
    finally:
        for process in processes:
            process.kill()
    logs = "\n".join((folder / f"rank{rank}.log").read_text()[-3000:] for rank in range(size))
    codes = [process.returncode for process in processes]
    assert codes == [0] * size, f"{codes}\n{logs}"
    ranks = [pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) for rank in range(size)]
    return {name: [results[name] for results in ranks] for name in ranks[0]}


class Failed(str):
    """The traceback of a task that raised."""


def main(job: str, results: str, device: str) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    from ftkit.parallel.backend import World
    from ftkit.parallel.process_group import connect, disconnect

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    world = World(rank, size, rank, size, torch.device(device, 0) if device == "cuda" else torch.device(device))
    if device == "cuda" and size > 1:
        dist.init_process_group("cpu:gloo,cuda:gloo")
    else:
        connect(world, 300)
    done: dict[str, Any] = {}
    for name, (function, arguments) in pickle.loads(Path(job).read_bytes()).items():
        try:
            done[name] = function(world, *arguments)
        except Exception:
            done[name] = Failed(traceback.format_exc())
            print(done[name], flush=True)
            break
    Path(results).write_bytes(pickle.dumps(done))
    disconnect()


if __name__ == "__main__":
    from pair import main as imported_main  # the same module as the pickles name

    imported_main(*sys.argv[1:])
