"""How long each phase of a run took on this rank, and how much memory it needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from ftkit.train.measure import resident_bytes


@dataclass
class Phases:
    """Seconds and GiB by phase, in the order they began; `beat` hears of beginnings and ends.

    A phase inside another (an evaluation in training) counts by itself and not for the outer one. Memory is the highest
    allocation on the GPU within the phase; on a CPU, which keeps no such mark, what lay in RAM at its end.
    """

    device: torch.device
    beat: Callable[[str], None] = lambda what: None
    seconds: dict[str, float] = field(default_factory=dict)
    memory_gib: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as `name`."""
        self.beat(f"all before phase {name!r}")
        self.close_part()
        self._open.append(name)
        try:
            yield
        finally:
            self.close_part()
            self._open.pop()
        self.beat(f"phase {name!r}")

    def close_part(self) -> None:
        """Count what happened since the last change of phase for the innermost open one."""
        now = time.monotonic()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = round(self.seconds.get(name, 0.0) + now - self._since, 3)
            self.memory_gib[name] = round(max(self.memory_gib.get(name, 0.0), self.memory()), 3)
        self._since = now

    def memory(self) -> float:
        """GiB since the last call on a GPU, else now."""
        if self.device.type != "cuda":
            return resident_bytes() / 2**30
        peak = torch.cuda.max_memory_allocated(self.device) / 2**30
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak
