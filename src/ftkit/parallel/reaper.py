"""The last resort of a launcher: ranks that no longer answer to anything but SIGKILL.

torch's agent asks ranks to end and kills after 30 s, counted from when the first has left. A rank that sits in a system
call, is stopped, or holds the interpreter's lock does not even hear its own guard. Here the seconds count from the
first failure that any rank has told of.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

KILL_SECONDS = 20.0  # twice what a rank's guard gives its main thread


@contextmanager
def reaping(folder: Path, kill_seconds: float = KILL_SECONDS) -> Iterator[None]:
    """While entered, kill the ranks that are left `kill_seconds` after one has written a failure below `folder`."""
    over = threading.Event()
    thread = threading.Thread(target=reap, args=(folder, kill_seconds, over), name="ftkit-reaper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def reap(folder: Path, kill_seconds: float, over: threading.Event) -> None:
    """The thread: wait for a failure, wait for the ranks to end, kill."""
    while not any(folder.rglob("error.json")):
        if over.wait(1.0):
            return
    if over.wait(kill_seconds):
        return
    for child in psutil.Process().children():
        with suppress(OSError, psutil.Error):
            if os.getsid(child.pid) == child.pid:  # torch's agent starts each rank in a session of its own
                os.killpg(child.pid, signal.SIGKILL)
