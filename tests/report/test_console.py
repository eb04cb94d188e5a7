from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from ftkit.report.console import Console
from ftkit.report.events import Ended, Evaluated, Event, Logged, Saved, Started, Warned

STARTED = Started(num_steps=60, first_step=0, steps_per_epoch=20)


class Stream(io.TextIOWrapper):
    """A stream of any encoding, in memory, that may say it is a terminal."""

    def __init__(self, encoding: str = "utf-8", *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variables by which a person, or a CI, asks for colours and widths."""
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


def seconds(step: float = 2.0) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def console(stream: Stream, **options: object) -> Console:
    return Console(stream, now=seconds().__next__, **options)  # type: ignore[arg-type]


def logged(step: int, loss: float = 2.5, mfu: float | None = None) -> Logged:
    return Logged(
        step=step,
        epoch=step / 20,
        loss=loss,
        grad_norm=0.75,
        learning_rate=2e-3,
        target_tokens=120,
        tokens_per_second=1234.5,
        mfu=mfu,
        memory_gib=1.52,
        data_seconds=0.0,
    )


EVENTS: tuple[Event, ...] = (
    STARTED,
    Evaluated(step=0, epoch=0.0, eval_loss=3.25, eval_target_tokens=80, eval_seconds=1.25),
    logged(1),
    logged(20, 1.0),
    Saved(step=20, folder=PurePosixPath("outputs/demo/checkpoint-20"), seconds=0.31),  # type: ignore[arg-type]
    Warned(step=21, text="no target token in this step"),
    Ended(step=21, seconds=40.0, reason="early stopping"),
)


def test_a_run_in_a_log_file() -> None:
    stream = Stream()
    shown = console(stream)
    for event in EVENTS:
        shown.on(event)
    assert stream.text() == (
        "step 0: evaluation loss 3.2500, perplexity 25.79 (1.2 s)\n"
        "step  1/60  loss 2.5000  rate 2.00e-03  1,234 tokens/s  1:58 left  1.5 GiB\n"
        "step 20/60  loss 1.0000  rate 2.00e-03  1,234 tokens/s  0:08 left  1.5 GiB\n"
        "step 20: saved outputs/demo/checkpoint-20 (0.3 s)\n"
        "warning: step 21: no target token in this step\n"
        "ended after step 21: early stopping\n"
    )


def test_a_terminal_has_one_line_that_moves() -> None:
    stream = Stream(terminal=True)
    shown = console(stream, width=60)
    for event in (STARTED, logged(1), logged(2), Ended(2, 4.0, "done")):
        shown.on(event)
    clear = "\r\x1b[2K"
    first = "step  1/60  loss 2.5000  rate 2.00e-03  1,234 tokens/s"
    assert stream.text() == clear + first + clear + first.replace(" 1/", " 2/") + clear


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Stream(terminal=True)
    shown = console(stream, width=80)
    shown.on(STARTED)
    shown.on(logged(1))
    assert "\x1b" not in stream.text()
    assert stream.text().endswith("\n")


def test_a_resumed_run_says_so_and_counts_its_own_time() -> None:
    stream = Stream()
    shown = console(stream, width=120)
    shown.on(Started(num_steps=60, first_step=40, steps_per_epoch=20))
    shown.on(logged(50, mfu=0.41))
    assert stream.text().splitlines() == [
        "resumed after step 40 of 60",
        "step 50/60  loss 2.5000  rate 2.00e-03  1,234 tokens/s  0:02 left  1.5 GiB  MFU 41%  grad 0.75  epoch 2.50",
    ]


def test_tables_go_into_80_columns_and_paths_stay_whole() -> None:
    stream = Stream()
    shown = console(stream)
    shown.substitutions(
        [
            ("optimizer", "paged_adamw_8bit", "adamw_bnb_8bit", "paging moves memory off a GPU"),
            ("flash_attention", "true", "torch's scaled dot product attention, one document at a time", "needs a GPU"),
        ]
    )
    path = "outputs/" + "deep/" * 16 + "metrics.jsonl"
    shown.facts("Done", {"steps": "60 in 80 s", "evaluation loss": "3.2500 -> 1.0000", "record": path})
    shown.next_steps([("talk to it", "ftkit chat outputs/demo")])
    assert stream.text() == (
        "\n"
        "Not as the recipe says, on this machine\n"
        "  optimizer        paged_adamw_8bit -> adamw_bnb_8bit\n"
        "                   (paging moves memory off a GPU)\n"
        "  flash_attention  true -> torch's scaled dot product attention, one document at\n"
        "                   a time\n"
        "                   (needs a GPU)\n"
        "\n"
        "Done\n"
        "  steps            60 in 80 s\n"
        "  evaluation loss  3.2500 -> 1.0000\n"
        f"  record           {path}\n"
        "\n"
        "Next\n"
        "  talk to it\n"
        "    ftkit chat outputs/demo\n"
    )


SAMPLES = [
    ("Who are you?", "I am a large model [bold]trained[/bold] by somebody else altogether.", "Wren. Happy tuning."),
    ("Was ist das?", "", "Ein Zaunkönig \N{BIRD}"),
]


def test_answers_stand_side_by_side() -> None:
    stream = Stream()
    console(stream, width=60).samples(SAMPLES)
    lines = [line.rstrip() for line in stream.text().splitlines()]
    assert lines == [
        "",
        "Answers before and after",
        "",
        "  Who are you?",
        "    before                      after",
        "    I am a large model          Wren. Happy tuning.",
        "    [bold]trained[/bold] by",
        "    somebody else altogether.",
        "",
        "  Was ist das?",
        "    before                      after",
        "                                Ein Zaunkönig \N{BIRD}",
    ]


def test_a_resumed_run_shows_only_the_answers_after() -> None:
    stream = Stream()
    console(stream).samples([("Who are you?", "", "Wren.")])
    assert [line.rstrip() for line in stream.text().splitlines()] == ["", "Answers", "", "  Who are you?", "    Wren."]


def test_a_stream_without_utf8_gets_question_marks() -> None:
    stream = Stream("ascii")
    shown = console(stream)
    shown.samples(SAMPLES)
    shown.facts("Done", {"model": "Zaunkönig"})
    shown.on(Warned(1, "ö"))
    assert "Zaunk?nig" in stream.text()


def test_escape_sequences_in_answers_do_nothing() -> None:
    stream = Stream()
    console(stream).samples([("\x1b]0;title\x07?", "", "a\x1b[2Jb\rc")])
    assert "\x1b" not in stream.text()
    assert "a?[2Jb?c" in stream.text()


def test_nothing_to_tell_prints_nothing() -> None:
    stream = Stream()
    shown = console(stream)
    shown.substitutions([])
    shown.samples([])
    shown.next_steps([])
    assert stream.text() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_quiet_console_prints_nothing(*, terminal: bool) -> None:
    stream = Stream(terminal=terminal)
    shown = console(stream, quiet=True)
    shown.facts("Run", {"model": "tiny"})
    shown.samples(SAMPLES)
    for event in EVENTS:
        shown.on(event)
    assert stream.text() == ""
