"""What a person sees of a run: tables at its start and end, and one line that moves in between.

On a terminal the line is rewritten in place; elsewhere (a log file, a pipe) each logged step is a plain line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich import box
from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from ftkit.report.events import Ended, Evaluated, Event, Logged, Saved, Started, Warned

PLAIN_WIDTH = 120  # of tables in a log file


class Console:
    """Prints; rank 0 has one.

    Args:
        stream: where to, by default standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.live = self.stream.isatty()
        self.rich = RichConsole(file=self.stream, width=None if self.live else PLAIN_WIDTH, highlight=False)
        self.started = Started(num_steps=0, first_step=0, steps_per_epoch=1)
        self.start_time = time.monotonic()

    def facts(self, title: str, facts: Mapping[str, str]) -> None:
        """A table of names and values: at the start what will run, at the end where things are."""
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts.items():
            table.add_row(name, Text(value))
        self.show(table)

    def substitutions(self, rows: Sequence[tuple[str, str, str, str]]) -> None:
        """What this machine does instead of what the recipe asks: key, asked, used, reason."""
        if rows:
            title = "This machine cannot honour these keys"
            self.table(title, ("key", "asked", "used instead", "because"), rows)

    def samples(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Answers side by side: prompt, before, after."""
        if rows:
            self.table("Answers before and after", ("prompt", "before", "after"), rows)

    def say(self, text: str) -> None:
        """One line."""
        self.show(Text(text))

    def on(self, event: Event) -> None:
        """Show an event."""
        match event:
            case Started():
                self.started, self.start_time = event, time.monotonic()
                if event.first_step:
                    self.say(f"resumed after step {event.first_step} of {event.num_steps}")
            case Logged():
                self.progress(event)
            case Evaluated():
                self.say(f"step {event.step}: evaluation loss {event.eval_loss:.4f} ({event.eval_seconds:.1f} s)")
            case Saved():
                self.say(f"step {event.step}: saved {event.folder} ({event.seconds:.1f} s)")
            case Warned():
                self.say(f"warning: step {event.step}: {event.text}")
            case Ended():
                self.clear()
                if event.reason != "done":
                    self.say(f"ended after step {event.step}: {event.reason}")

    def progress(self, event: Logged) -> None:
        """The moving line."""
        done = event.step - self.started.first_step
        left = (time.monotonic() - self.start_time) / max(done, 1) * (self.started.num_steps - event.step)
        parts = [
            f"step {event.step}/{self.started.num_steps}",
            f"epoch {event.epoch:.2f}",
            f"loss {event.loss:.4f}",
            f"grad norm {event.grad_norm:.3g}",
            f"rate {event.learning_rate:.2e}",
            f"{event.tokens_per_second:,.0f} tokens/s",
            f"{clock(left)} left",
        ]
        line = "  ".join(parts)
        if self.live:
            self.clear()
            self.stream.write(line[: self.rich.width - 1])
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table with a heading."""
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_lines=len(columns) == 3)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))  # Text: brackets in a cell are not markup
        self.show(table)

    def show(self, what: Table | Text) -> None:
        """Print above the moving line."""
        self.clear()
        self.rich.print(what)

    def clear(self) -> None:
        """Take the moving line away."""
        if self.live:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
