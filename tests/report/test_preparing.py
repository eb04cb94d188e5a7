from __future__ import annotations

import io

from ftkit.report.console import Console
from ftkit.report.preparing import PrepareProgress


def lines(*told: tuple[float, int, int | None]) -> list[str]:
    """What a log file holds after being told of rows at some seconds."""
    clock, stream = [0.0], io.StringIO()
    progress = PrepareProgress(Console(stream, now=lambda: clock[0]))
    for seconds, rows, expected in told:
        clock[0] = seconds
        progress(rows, expected)
    progress.done()
    return stream.getvalue().splitlines()


def test_short_work_is_not_spoken_of() -> None:
    assert lines((0.5, 500, 1000), (1.0, 1000, 1000)) == []


def test_a_log_file_gets_a_line_now_and_then_with_rate_and_time_left() -> None:
    assert lines((1, 100, 3000), (10, 1000, 3000), (11, 1100, 3000), (21, 2100, 3000)) == [
        "preparing 1,000 of 3,000 rows  100 rows/s  0:20 left",
        "preparing 2,100 of 3,000 rows  100 rows/s  0:09 left",
    ]


def test_without_a_known_number_there_is_no_time_left() -> None:
    assert lines((10, 1000, None)) == ["preparing 1,000 rows  100 rows/s"]


def test_the_next_part_starts_anew() -> None:
    assert lines((10, 1000, 1000), (20, 400, None), (30, 800, None))[1:] == [
        "preparing 400 rows  40 rows/s",
        "preparing 800 rows  40 rows/s",
    ]
