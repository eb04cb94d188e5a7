"""What ranks tell each other outside the backend: who ended first, and that somebody still moves.

A thread of each rank talks to the key-value store that the processes found each other by, once a second and through a
connection of its own. So a rank learns of a failure on another node while its backend waits in a collective, whatever
the backend is, and a rank that only waits is not taken for one that hangs while others work.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ftkit.parallel.failures import Failure
from ftkit.parallel.watchdog import Heartbeat

EVERY_SECONDS = 1.0
ANSWER_SECONDS = 10  # in which the store must answer


class Peers:
    """The thread and what it heard.

    Args:
        heartbeat: of this rank.
        variables: of the environment; the launcher's say where the store is.

    `first` is the failure that was told first, `heard_at` when it was heard, `moved_at` when any rank last moved (in
    monotonic seconds; None before the ranks are in touch), `unreachable` why the store does not answer any more.
    """

    def __init__(self, heartbeat: Heartbeat, variables: Mapping[str, str]) -> None:
        self.heartbeat, self.variables = heartbeat, variables
        self.first: Failure | None = None
        self.heard_at = 0.0
        self.moved_at: float | None = None
        self.unreachable: str | None = None
        self.outgoing: Failure | None = None
        self.told, self.wake, self.leaving = threading.Event(), threading.Event(), False
        self.thread = threading.Thread(target=self.talk, name="ftkit-peers", daemon=True)

    @property
    def address(self) -> str:
        """Where the store is."""
        return f"{self.variables.get('MASTER_ADDR', '')}:{self.variables.get('MASTER_PORT', '')}"

    def start(self) -> None:
        """Begin to talk."""
        self.thread.start()

    def tell(self, failure: Failure, wait_seconds: float = 3.0) -> None:
        """Tell the others that this rank has ended; a store that does not answer is not waited for long."""
        self.outgoing = failure
        self.wake.set()
        if self.moved_at is not None and self.unreachable is None:
            self.told.wait(wait_seconds)

    def stop(self) -> None:
        """End the thread, soon."""
        self.leaving = True
        self.wake.set()

    def talk(self) -> None:
        """Tell and listen until the run ends."""
        try:
            while not self.is_there():
                if self.leaving:
                    return
                self.pause()
            host, _, port = self.address.rpartition(":")
            limit = timedelta(seconds=ANSWER_SECONDS)
            store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but torch does not list it
                host, int(port), is_master=False, wait_for_workers=False, timeout=limit
            )
            self.exchange(store)
        except (RuntimeError, ValueError) as lost:
            self.unreachable = str(lost)
            self.told.set()

    def exchange(self, store: Any) -> None:
        """The same few words again and again."""
        # A launcher that restarts ranks keeps its store: what an earlier attempt told is not news.
        attempt = f"ftkit/{self.variables.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        beats, moves = -1, -1
        while not self.leaving or (self.outgoing and not self.told.is_set()):
            known = store.add(f"{attempt}/moves", int(self.heartbeat.count != beats))
            if known != moves:
                self.moved_at = time.monotonic()
            beats, moves = self.heartbeat.count, known
            if self.outgoing and not self.told.is_set():
                store.compare_set(f"{attempt}/first", "", json.dumps(asdict(self.outgoing)))
                self.told.set()
            if self.first is None and store.check([f"{attempt}/first"]):
                self.heard_at = time.monotonic()  # by this node's clock, unlike `first.at`
                self.first = Failure(**json.loads(store.get(f"{attempt}/first")))
            self.pause()

    def is_there(self) -> bool:
        """Whether the store can be there: the launcher holds it from the start, or rank 0 since the group was made."""
        return self.variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or dist.is_initialized()

    def pause(self) -> None:
        """Wait for the next turn, or for something to tell."""
        self.wake.wait(EVERY_SECONDS)
        self.wake.clear()
