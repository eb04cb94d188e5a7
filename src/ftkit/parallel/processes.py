"""Starting the processes of a run, one a GPU, on this node and together with other nodes, and ending them together.

torch's own agent (torch.distributed.launcher) starts them, gives each its place in the environment, and ends all when
one ends. What it does not do is done here: say what happened in one message, the first failure on top, with its exit
code. How ranks end in time, and how nodes hear of each other's failures, is `guard.py`'s, in each rank.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ftkit.errors import BackendError, RecipeError
from ftkit.parallel.failures import (
    KILLED_HELP,
    LAUNCHER,
    NEWS_SECONDS,
    Failure,
    account_of,
    first_of,
    read_failures,
)
from ftkit.parallel.reaper import reaping

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # by torch's agent
RENDEZVOUS_SECONDS = 900  # torch's default


@dataclass(frozen=True, slots=True)
class Layout:
    """How many processes, and where.

    Args:
        processes: on this node.
        nodes: in the run.
        node_rank: of this node; None lets the rendezvous number the nodes.
        rendezvous: HOST:PORT where the nodes meet; None on one node.
        seconds: to wait for the other nodes.
    """

    processes: int
    nodes: int = 1
    node_rank: int | None = None
    rendezvous: str | None = None
    seconds: int = RENDEZVOUS_SECONDS

    @property
    def several(self) -> bool:
        """Whether there is anything to start: one process on one node is this one."""
        return self.processes > 1 or self.nodes > 1


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run ended: exit code, and what is to be said (empty where all went well)."""

    code: int
    text: str


def is_rank(variables: Mapping[str, str]) -> bool:
    """Whether a launcher started this process: it is a rank already, and starts no others."""
    return "WORLD_SIZE" in variables or "ACCELERATE_MIXED_PRECISION" in variables


def choose_layout(
    processes: int | None,
    nodes: int = 1,
    node_rank: int | None = None,
    rendezvous: str | None = None,
    seconds: int = RENDEZVOUS_SECONDS,
) -> Layout:
    """How many processes to start: as many as asked for, else one a visible GPU, else one.

    Raises:
        RecipeError: the options contradict each other.
        BackendError: more processes than GPUs were asked for.
    """
    where = "command line"
    if nodes > 1 and rendezvous is None:
        help = "--rdzv HOST:PORT, the same on each node: a node's address and a free port there"
        raise RecipeError(f"several nodes must know where they meet, got --nnodes {nodes}", where=where, help=help)
    if nodes == 1 and (node_rank or rendezvous):
        option = f"--rdzv {rendezvous}" if rendezvous else f"--node-rank {node_rank}"
        raise RecipeError(f"one node meets nobody, got {option}", where=where, help="give --nnodes N too")
    if node_rank is not None and not 0 <= node_rank < nodes:
        help = f"0 to {nodes - 1}, each on one node"
        raise RecipeError(f"--node-rank is not below --nnodes {nodes}, got {node_rank}", where=where, help=help)
    if rendezvous is not None and not rendezvous.rpartition(":")[2].isdecimal():
        raise RecipeError(f"--rdzv must be HOST:PORT, got {rendezvous}", where=where, help="as in --rdzv node0:29500")
    gpus = num_gpus()
    if processes is not None and gpus and processes > gpus:
        help = f"--processes {gpus}, or look at CUDA_VISIBLE_DEVICES"
        raise BackendError(f"one process a GPU: {gpus} visible, got --processes {processes}", where=where, help=help)
    return Layout(processes or max(gpus, 1), nodes, node_rank, rendezvous, seconds)


def num_gpus() -> int:
    """Visible GPUs."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def run_processes(layout: Layout, command: Sequence[str]) -> Ending:
    """Run `command` in each process of the layout, until all have ended.

    Args:
        command: arguments for this Python, the same for every rank.

    Raises:
        BackendError: the nodes did not find each other.
    """
    with tempfile.TemporaryDirectory(prefix="ftkit-") as folder:
        return run_logged_in(Path(folder), layout, command)


def run_logged_in(folder: Path, layout: Layout, command: Sequence[str]) -> Ending:
    """The same; ranks leave their failures below `folder`."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    quiet_torch()
    handlers = {number: signal.getsignal(number) for number in CAUGHT}
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        with reaping(folder):
            elastic_launch(launch_config(folder, layout), sys.executable)(*command)
    except ChildFailedError as failed:
        ended = {rank: (failure.exitcode, failure.timestamp) for rank, failure in failed.failures.items()}
        if layout.nodes > 1:  # the store that tells the other nodes may be in this process
            time.sleep(NEWS_SECONDS)
        return ending_of(read_failures(folder), ended)
    except SignalException as stop:
        return stopped_by(stop.sigval, read_failures(folder))
    except (RendezvousError, RuntimeError, ValueError) as failed:
        told = read_failures(folder)
        if any(failure.kind != "terminated" for failure in told):
            return ending_of(told, {})
        raise not_met(layout, failed, began=bool(told)) from failed
    finally:
        del os.environ[LAUNCHER]
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Ending(0, "")


def not_met(layout: Layout, failed: Exception, *, began: bool) -> BackendError:
    """The error of nodes that do not find each other, or no longer do."""
    words = str(failed).splitlines()[0]
    if began:
        help = "look at what that node said last"
        return BackendError(
            f"the node that holds the rendezvous is gone, got {words}", where=layout.rendezvous, help=help
        )
    return BackendError(
        f"the nodes did not find each other, got {words}",
        where=layout.rendezvous,
        help=f"--rdzv is the address of one of the {layout.nodes} nodes, to be reached from each; all must be started "
        f"within {layout.seconds} s of each other, with the same --nnodes",
    )


def launch_config(folder: Path, layout: Layout) -> LaunchConfig:
    """The layout in torch's words. A node that has a rank keeps it (`static`); else they are numbered as they come."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    static = layout.node_rank is not None
    timeouts = {"join_timeout": layout.seconds, "timeout": layout.seconds}
    return LaunchConfig(
        min_nodes=layout.nodes,
        max_nodes=layout.nodes,
        nproc_per_node=layout.processes,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        run_id="ftkit",
        role="ftkit",
        rdzv_backend="static" if static else "c10d",
        rdzv_endpoint=layout.rendezvous or "localhost:0",
        rdzv_configs={**timeouts, "rank": layout.node_rank} if static else timeouts,
        max_restarts=0,
    )


def quiet_torch() -> None:
    """Have torch's agent keep its log to itself: everything that matters is in the ending."""
    prefix = "torch.distributed.elastic"
    for name in [prefix, *(name for name in logging.root.manager.loggerDict if name.startswith(prefix))]:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def ending_of(told: Sequence[Failure], ended: Mapping[int, tuple[int, float]]) -> Ending:
    """The ending out of what ranks told and, for those that could not, their (exit code, time) by rank."""
    silent = ended.keys() - {failure.rank for failure in told}
    failures = [*told, *(silent_failure(rank, *ended[rank]) for rank in silent)]
    return Ending(first_of(failures).code, account_of(sorted(failures, key=lambda failure: failure.rank)))


def silent_failure(rank: int, code: int, at: float) -> Failure:
    """A rank that ended without a word."""
    if code in {-signal.SIGTERM, 128 + signal.SIGTERM}:
        return Failure(rank, "terminated", 128 + signal.SIGTERM, "terminated", at)
    if code < 0:
        text = f"rank {rank}: killed by {signal.Signals(-code).name}"
        return Failure(rank, "killed", BackendError.exit_code, f"{text}\nhelp: {KILLED_HELP}", at)
    return Failure(rank, "error", code, f"rank {rank}: ended without a word, with exit code {code}", at)


def stopped_by(number: signal.Signals, told: Sequence[Failure]) -> Ending:
    """The ending after a signal to the launcher: in rank 0's words, which say where the run can go on."""
    word = "interrupted" if number == signal.SIGINT else "terminated"
    ranks = sorted(told, key=lambda failure: failure.rank)
    words = next((failure.text for failure in ranks if failure.kind == "terminated"), word)
    return Ending(128 + number, words)
