"""Time and memory between two logged steps."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch


@dataclass
class Meter:
    """Counts tokens and seconds of training alone: what `aside` surrounds (evaluation, saving) does not count.

    Args:
        flops_per_token: floating point operations a token costs; None leaves mfu unknown.
        peak_flops: a second, of all devices together.
    """

    device: torch.device
    flops_per_token: float | None = None
    peak_flops: float | None = None
    tokens: int = 0
    data_seconds: float = 0.0
    _start: float = field(default_factory=time.monotonic)
    _aside: float = 0.0
    _peak: float = 0.0

    def start(self) -> None:
        """Begin a new window."""
        self.tokens, self.data_seconds, self._aside, self._start = 0, 0.0, 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds of training in this window."""
        return max(time.monotonic() - self._start - self._aside, 1e-9)

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Time spent here is data_seconds."""
        start = time.monotonic()
        yield
        self.data_seconds += time.monotonic() - start

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Time spent here is not training."""
        start = time.monotonic()
        yield
        self._aside += time.monotonic() - start

    def mfu(self, tokens_per_second: float) -> float | None:
        """Share of the peak that `tokens_per_second` makes use of."""
        if self.flops_per_token is None or self.peak_flops is None:
            return None
        return tokens_per_second * self.flops_per_token / self.peak_flops

    def memory_gib(self) -> float:
        """Highest allocation on the GPU so far; on a CPU resident memory of this process now."""
        if self.device.type == "cuda":
            self._peak = max(self._peak, torch.cuda.max_memory_allocated(self.device) / 2**30)  # others reset its mark
            return self._peak
        return resident_bytes() / 2**30


def resident_bytes() -> int:
    """Memory of this process that lies in RAM; where the system does not tell (no /proc), the highest so far.

    Not ru_maxrss on Linux: a process started by a larger one inherits the larger one's peak there.
    """
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, else in KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
