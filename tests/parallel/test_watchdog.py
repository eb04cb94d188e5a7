from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ftkit.parallel.watchdog import Heartbeat, dump_stacks, stacks_name, stall_text


def test_a_beat_is_counted_named_and_timed() -> None:
    beat = Heartbeat()
    first = beat.at
    beat("step 1")
    assert (beat.what, beat.count) == ("step 1", 1)
    assert beat.at >= first


def waiting_in_a_function_with_a_name(over: threading.Event) -> None:
    over.wait()


def test_the_stacks_of_all_threads_go_to_a_file_and_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()
    thread = threading.Thread(target=waiting_in_a_function_with_a_name, args=(over,))
    thread.start()
    try:
        dump_stacks(tmp_path / "out", 3)
    finally:
        over.set()
        thread.join()
    text = (tmp_path / "out" / "stacks-rank-3.txt").read_text(encoding="utf8")
    assert "in waiting_in_a_function_with_a_name" in text
    assert "in test_the_stacks_of_all_threads_go_to_a_file_and_to_stderr" in text
    shown = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("rank 3| ") for line in shown] == text.splitlines()


def test_a_folder_that_cannot_be_written_does_not_hide_the_stacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    dump_stacks(tmp_path / "file" / "out", 0)
    shown = capfd.readouterr().err
    assert shown.startswith(f"rank 0| {tmp_path}/file/out/stacks-rank-0.txt: ")
    assert "test_a_folder_that_cannot_be_written_does_not_hide_the_stacks" in shown


def test_the_text_says_what_was_last_and_how_to_mend(tmp_path: Path) -> None:
    beat = Heartbeat()
    beat("a forward pass after step 7")
    text = stall_text(beat, 60, tmp_path / stacks_name("*"))
    assert text.startswith("nothing has moved for 60 s, the last here was a forward pass after step 7\nhelp: ")
    assert f"{tmp_path}/stacks-rank-*.txt" in text
    assert text.endswith("raise ddp_timeout")
