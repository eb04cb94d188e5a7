"""How the outside hears of a run. Nothing in the loop knows who listens."""

from __future__ import annotations

from typing import Protocol

from ftkit.report.events import Ended, Evaluated, Event, Logged, Saved, Started, Warned

__all__ = ["Ended", "Evaluated", "Event", "Listener", "Logged", "Saved", "Started", "Warned"]


class Listener(Protocol):
    """Hears every event of a run, on rank 0, in order."""

    def on(self, event: Event) -> None:
        """Take note; what it raises ends the run."""
