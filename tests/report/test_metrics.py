from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ftkit.report.events import Ended, Evaluated, Logged, Saved, Started, Warned
from ftkit.report.metrics import MetricsFile, perplexity, read_metrics, truncate_after

LOGGED = Logged(
    step=1,
    epoch=0.25,
    loss=2.5,
    grad_norm=0.75,
    learning_rate=2e-4,
    target_tokens=120,
    tokens_per_second=1000.0,
    mfu=None,
    memory_gib=1.5,
    data_seconds=0.01,
)
EVALUATED = Evaluated(step=2, epoch=0.5, eval_loss=1.25, eval_target_tokens=80, eval_seconds=0.5)


def started(first_step: int = 0) -> Started:
    return Started(num_steps=8, first_step=first_step, steps_per_epoch=4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "metrics.jsonl"


def write(path: Path, steps: int) -> MetricsFile:
    file = MetricsFile(path)
    file.on(started())
    for step in range(1, steps + 1):
        file.on(replace(LOGGED, step=step))
    return file


def test_a_line_has_the_documented_keys_and_is_there_at_once(path: Path) -> None:
    file = MetricsFile(path)
    for event in (started(), LOGGED, EVALUATED):
        file.on(event)
    step, evaluation = map(json.loads, path.read_text(encoding="utf8").splitlines())
    assert list(step) == [
        "step",
        "epoch",
        "loss",
        "grad_norm",
        "learning_rate",
        "target_tokens",
        "tokens_per_second",
        "mfu",
        "memory_gib",
        "data_seconds",
    ]
    assert step["loss"] == 2.5
    assert evaluation == {
        "step": 2,
        "epoch": 0.5,
        "eval_loss": 1.25,
        "eval_target_tokens": 80,
        "eval_seconds": 0.5,
        "eval_perplexity": math.exp(1.25),
    }


def test_other_events_write_nothing(path: Path) -> None:
    file = write(path, 1)
    for event in (Saved(1, path, 0.1), Warned(1, "odd"), Ended(1, 2.0, "done")):
        file.on(event)
    assert len(list(read_metrics(path))) == 1


def test_a_new_run_begins_a_new_file_and_a_resumed_one_goes_on_after_its_step(path: Path) -> None:
    write(path, 5)
    file = MetricsFile(path)
    file.on(started(first_step=3))
    file.on(replace(LOGGED, step=4, loss=9.0))
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [(1, 2.5), (2, 2.5), (3, 2.5), (4, 9.0)]
    MetricsFile(path).on(started())
    assert list(read_metrics(path)) == []


def test_a_line_torn_by_a_kill_is_dropped(path: Path) -> None:
    write(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    truncate_after(path, 3)
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])


def test_a_tail_of_zeros_after_a_power_cut_is_dropped(path: Path) -> None:
    write(path, 2)
    path.write_bytes(path.read_bytes() + b"\0\0\0\xff")
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_what_is_not_a_number_is_null(path: Path) -> None:
    file = write(path, 0)
    file.on(replace(LOGGED, loss=math.nan, grad_norm=math.inf))
    file.on(replace(EVALUATED, eval_loss=1e6))
    assert "NaN" not in path.read_text(encoding="utf8")
    step, evaluation = read_metrics(path)
    assert (step["loss"], step["grad_norm"], evaluation["eval_perplexity"]) == (None, None, None)


def test_a_file_that_is_not_there_has_no_lines(path: Path) -> None:
    assert list(read_metrics(path)) == []
    assert perplexity(0.0) == 1.0
