"""What sees to it that a rank ends when it should, even while its main thread waits in a collective for ever.

One thread beside the run, which wakes once a second. It ends the rank
- ten seconds after a signal to end, if the main thread, which may sit in C code, has not left by itself;
- when its launcher is gone (killed, or its node's job): an orphan would go on training beside the next run;
- when another rank has ended, or the store of the run is gone with its node;
- when nothing has moved for `ddp_timeout` seconds, after the stacks of every rank have been written down.
Each time the reason is told first, to the other ranks and to whoever reads this rank's error.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ftkit.errors import BackendError
from ftkit.parallel.backend import World
from ftkit.parallel.failures import INTERRUPTED, LAUNCHER, NEWS_SECONDS, Failure, failure_of, report
from ftkit.parallel.peers import Peers
from ftkit.parallel.watchdog import DEFAULT_SECONDS, Heartbeat, dump_stacks, stacks_name, stall_text

TICK_SECONDS = 1.0
# A rank has this long to leave by itself. torch's and accelerate's launchers kill 30 s after they have asked to end.
GRACE_SECONDS = 10.0
TO_END = (signal.SIGTERM, signal.SIGINT)


class Guard:
    """Guards a run while entered; gives the heartbeat that the run feeds.

    Args:
        timeout_seconds: `ddp_timeout`; None is 30 minutes, and for ever where there is one process.
        folder: of the files with stacks.
        variables: of the environment.
    """

    def __init__(
        self, world: World, timeout_seconds: float | None, folder: Path, variables: Mapping[str, str] = os.environ
    ) -> None:
        self.world, self.folder, self.variables = world, folder, variables
        self.timeout = timeout_seconds or (DEFAULT_SECONDS if world.size > 1 else None)
        self.heartbeat = Heartbeat()
        self.peers = Peers(self.heartbeat, variables) if world.size > 1 else None
        self.parent = int(variables.get(LAUNCHER, 0)) or os.getppid()
        self.deadline: float | None = None  # for the main thread to leave
        self.code = 128 + signal.SIGTERM
        self.reason: Failure | None = None  # why this guard ends the run
        self.dumped = False
        self.ears, self.mouth = os.pipe()
        self.thread = threading.Thread(target=self.watch, name="ftkit-guard", daemon=True)
        self.stopped = threading.Event()

    def __enter__(self) -> Heartbeat:
        """Start the threads, unless there is nothing to watch for."""
        if self.peers is None and self.timeout is None:
            return self.heartbeat
        self.old_mouth: int | None = None
        with suppress(ValueError):  # only the main thread hears signals
            os.set_blocking(self.mouth, False)
            self.old_mouth = signal.set_wakeup_fd(self.mouth, warn_on_full_buffer=False)
        if self.peers is not None:
            self.peers.start()
        self.thread.start()
        return self.heartbeat

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Tell the others of a failure, and stop watching.

        Raises:
            BackendError: in place of the interruption by which this guard has ended the run.
        """
        if self.peers is not None:
            if error is not None:
                self.tell(failure_of(error, self.world.rank), self.peers)
            self.peers.stop()
        if self.thread.ident is not None:
            self.stopped.set()
            os.write(self.mouth, b"\0")
            self.thread.join()
            if self.old_mouth is not None:
                signal.set_wakeup_fd(self.old_mouth)
        os.close(self.ears)
        os.close(self.mouth)
        if self.reason is not None and isinstance(error, KeyboardInterrupt):
            what, *help = self.reason.text.split("\nhelp: ", 1)
            raise BackendError(what, help=help[0] if help else None) from None

    def tell(self, failure: Failure, peers: Peers) -> None:
        """Tell the others of an exception; one that says no more than that a rank is gone waits to learn why."""
        peers.tell(failure)
        end = time.monotonic() + NEWS_SECONDS
        while failure.kind == "lost" and peers.first is None and time.monotonic() < end:
            time.sleep(0.1)
        if failure.kind == "lost" and peers.first is not None and peers.first.rank != failure.rank:
            report(self.following(peers.first), self.world.size, self.variables)

    def following(self, first: Failure) -> Failure:
        """This rank's failure for another's."""
        told = first.text if first.text.startswith(f"rank {first.rank}:") else f"rank {first.rank} ended: {first.text}"
        return Failure(self.world.rank, "followed", first.code, told)

    def watch(self) -> None:
        """The thread."""
        while not self.stopped.is_set():
            ready, _, _ = select.select([self.ears], [], [], TICK_SECONDS)
            heard = os.read(self.ears, 64) if ready else b""
            if self.deadline is not None:
                if time.monotonic() > self.deadline:
                    self.leave()
            elif number := next((number for number in TO_END if number in heard), None):
                self.code, self.deadline = 128 + number, time.monotonic() + GRACE_SECONDS
                if self.peers is not None:  # the main thread may never come to it
                    self.peers.tell(self.ended_by_signal(), wait_seconds=0)
            elif reason := self.reason_to_end():
                self.end(reason)

    def reason_to_end(self) -> Failure | None:
        """What this rank should end for now, if anything."""
        rank, peers = self.world.rank, self.peers
        if self.launcher_gone():
            return Failure(
                rank, "error", BackendError.exit_code, f"rank {rank}: its launcher is gone, the run cannot go on alone"
            )
        if peers is not None and peers.first is not None and peers.first.rank != rank:
            first = peers.first
            if first.kind == "stalled":
                self.write_stacks()
            elif time.monotonic() - peers.heard_at < NEWS_SECONDS:
                return None
            return self.following(first)
        if peers is not None and peers.unreachable and self.seconds_still() > NEWS_SECONDS:
            text = (
                f"rank {rank}: the launcher or rank that holds the run's store at {peers.address} is gone, "
                f"got {peers.unreachable.splitlines()[0]}"
            )
            return Failure(rank, "lost", BackendError.exit_code, f"{text}\nhelp: look at what that node said last")
        if self.timeout is not None and self.seconds_still() > self.timeout:
            self.write_stacks()
            text = stall_text(self.heartbeat, self.timeout, self.folder / stacks_name("*"))
            return Failure(rank, "stalled", BackendError.exit_code, f"rank {rank}: {text}")
        return None

    def launcher_gone(self) -> bool:
        """Whether the process that would end this rank with the others has ended itself."""
        return "TORCHELASTIC_RUN_ID" in self.variables and os.getppid() != self.parent

    def write_stacks(self) -> None:
        """Write down where this rank stands."""
        dump_stacks(self.folder, self.world.rank)
        self.dumped = True

    def seconds_still(self) -> float:
        """Seconds since any rank moved, as far as this one knows; 0 before the ranks are in touch."""
        last: float | None = self.heartbeat.at
        if self.peers is not None:
            last = self.peers.moved_at and max(self.heartbeat.at, self.peers.moved_at)
        return time.monotonic() - last if last is not None else 0.0

    def ended_by_signal(self) -> Failure:
        """The failure of a rank that was told to end."""
        word = "interrupted" if self.code == INTERRUPTED else "terminated"
        return Failure(self.world.rank, "terminated", self.code, word)

    def end(self, reason: Failure) -> None:
        """Say why, tell the others, and ask the main thread to leave."""
        self.reason = reason
        if self.peers is not None:
            report(reason, self.world.size, self.variables, launcher_gone=self.launcher_gone())
            self.peers.tell(reason)
        if self.dumped:  # a rank that leaves has its launcher end the others: let them write theirs first
            time.sleep(NEWS_SECONDS)
        self.code = reason.code
        self.deadline = time.monotonic() + GRACE_SECONDS
        os.kill(os.getpid(), signal.SIGTERM)

    def leave(self) -> None:
        """End the process: its main thread has not left in time."""
        report(self.reason or self.ended_by_signal(), self.world.size, self.variables)
        os._exit(self.code)
