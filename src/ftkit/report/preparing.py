"""The line that moves while rows are prepared: how many, how fast, how long still."""

from __future__ import annotations

from ftkit.report.console import Console
from ftkit.report.layout import clock, fit

LIVE_SECONDS, PLAIN_SECONDS = 0.2, 10.0  # between two lines on a terminal, in a log file


class PrepareProgress:
    """Told of rows, tells the console; short work is not spoken of."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.start = self.last = self.told = console.now()
        self.rows = 0

    def __call__(self, rows: int, expected: int | None) -> None:
        """Take in that `rows` of `expected` rows of the part in work are done."""
        if rows < self.rows:  # the next part
            self.start = self.told
        now = self.console.now()
        self.rows, self.told = rows, now
        if now - self.last >= (LIVE_SECONDS if self.console.live else PLAIN_SECONDS):
            self.last = now
            self.show(expected, now - self.start)

    def show(self, expected: int | None, seconds: float) -> None:
        """Write the line."""
        rate = self.rows / max(seconds, 1e-9)
        of_all = f" of {expected:,}" if expected else ""
        parts = [f"preparing {self.rows:,}{of_all} rows", f"{rate:,.0f} rows/s"]
        if expected:
            parts.append(f"{clock(max(expected - self.rows, 0) / max(rate, 1e-9))} left")
        self.console.clear()
        self.console.write(fit(parts, self.console.width - 1) + ("" if self.console.live else "\n"))

    def done(self) -> None:
        """Take the line away."""
        self.console.clear()
