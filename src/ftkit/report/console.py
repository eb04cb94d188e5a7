"""What a person sees of a run: tables at its start and end, and one line that moves in between.

On a terminal the line is rewritten in place; elsewhere (a log file, a pipe) each logged step is a plain line. All of it
goes into 80 columns, and into ASCII where the stream has nothing better.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from ftkit.report.events import Ended, Evaluated, Event, Logged, Saved, Started, Warned
from ftkit.report.layout import clock, fit, hanging, printable
from ftkit.report.metrics import perplexity

PLAIN_WIDTH = 80  # of a log file or a pipe
WIDEST = 120  # of text on a wide screen


class Console:
    """Prints what it is told and what it hears.

    Args:
        stream: where to, by default standard output.
        quiet: print nothing; for all ranks but the first.
        width: columns; by default the terminal's, and 80 where there is none.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        quiet: bool = False,
        width: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.encoding = getattr(self.stream, "encoding", None) or "utf-8"
        is_terminal = self.stream.isatty()
        columns = width or (None if is_terminal else PLAIN_WIDTH)
        self.rich = RichConsole(file=self.stream, width=columns, highlight=False, quiet=quiet, soft_wrap=True)
        self.live = is_terminal and not self.rich.is_dumb_terminal
        self.quiet, self.now = quiet, now
        self.started, self.start_time = Started(num_steps=0, first_step=0, steps_per_epoch=1), now()

    @property
    def width(self) -> int:
        """Columns to write in."""
        return min(self.rich.width, WIDEST)

    def facts(self, title: str, facts: Mapping[str, str]) -> None:
        """A table of names and values: at the start what will run, at the end where things are."""
        self.heading(title)
        indent = max((len(name) for name in facts), default=0) + 4
        for name, value in facts.items():
            for line in hanging(f"  {name}", printable(value, self.encoding), indent, self.width):
                self.say(line)

    def substitutions(self, rows: Sequence[tuple[str, str, str, str]]) -> None:
        """What this machine does instead of what the recipe asks: key, asked, used, reason."""
        if rows:
            self.facts(
                "Not as the recipe says, on this machine",
                {key: f"{asked} -> {used}\n({reason})" for key, asked, used, reason in rows},
            )

    def next_steps(self, rows: Sequence[tuple[str, str]]) -> None:
        """What to type next: what it does, and the command, which is never broken over lines."""
        if rows:
            self.heading("Next")
        for purpose, command in rows:
            self.say(f"  {purpose}")
            self.say(f"    {command}")

    def samples(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Answers side by side: prompt, before, after. Without any before (a resumed run), only what is known."""
        if not rows:
            return
        known = any(before for _, before, _ in rows)
        self.heading("Answers before and after" if known else "Answers")
        for prompt, before, after in rows:
            self.say("")
            self.say("  " + printable(prompt, self.encoding), style="italic")
            grid = Table.grid(padding=(0, 2), expand=False)
            grid.add_column(width=2)
            cells = [before, after] if known else [after]
            for _ in cells:
                grid.add_column(width=(self.width - 4) // len(cells) - 2, overflow="fold")
            if known:
                grid.add_row("", Text("before", style="dim"), Text("after", style="dim"))
            grid.add_row("", *(Text(printable(cell, self.encoding)) for cell in cells))
            self.show(grid)

    def on(self, event: Event) -> None:
        """Show an event."""
        match event:
            case Started():
                self.started, self.start_time = event, self.now()
                if event.first_step:
                    self.say(f"resumed after step {event.first_step} of {event.num_steps}")
            case Logged():
                self.progress(event)
            case Evaluated():
                loss = f"{event.eval_loss:.4f}, perplexity {perplexity(event.eval_loss):.4g}"
                self.say(f"step {event.step}: evaluation loss {loss} ({event.eval_seconds:.1f} s)")
            case Saved():
                self.say(f"step {event.step}: saved {event.folder} ({event.seconds:.1f} s)")
            case Warned():
                self.say(f"warning: step {event.step}: {event.text}", style="yellow")
            case Ended():
                self.clear()
                if event.reason != "done":
                    self.say(f"ended after step {event.step}: {event.reason}", style="yellow")

    def progress(self, event: Logged) -> None:
        """The moving line; what a narrow screen has no room for stands last."""
        done = event.step - self.started.first_step
        left = (self.now() - self.start_time) / max(done, 1) * (self.started.num_steps - event.step)
        parts = [
            f"step {event.step:>{len(str(self.started.num_steps))}}/{self.started.num_steps}",
            f"loss {event.loss:.4f}",
            f"rate {event.learning_rate:.2e}",
            f"{event.tokens_per_second:,.0f} tokens/s",
            f"{clock(left)} left",
        ]
        if event.memory_gib is not None:
            parts.append(f"{event.memory_gib:.1f} GiB")
        if event.mfu is not None:
            parts.append(f"MFU {event.mfu:.0%}")
        parts += [f"grad {event.grad_norm:.3g}", f"epoch {event.epoch:.2f}"]
        if self.live:
            self.clear()
            self.write(fit(parts, self.width - 1))
        else:
            self.write(fit(parts, self.width) + "\n")

    def heading(self, title: str) -> None:
        """A title after an empty line."""
        self.say("")
        self.say(title, style="bold")

    def say(self, text: str, style: str = "") -> None:
        """One line, as long as it is."""
        self.show(Text(printable(text, self.encoding), style=style))

    def show(self, what: Table | Text) -> None:
        """Print above the moving line."""
        self.clear()
        self.rich.print(what)

    def clear(self) -> None:
        """Take the moving line away; also what to do before an error is printed."""
        if self.live:
            self.write("\r\x1b[2K")

    def write(self, text: str) -> None:
        """Put `text` on the stream now."""
        if not self.quiet:
            self.stream.write(text)
            self.stream.flush()
