from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from ftkit.report.events import Ended, Saved, Started
from ftkit.report.plot import LossPlot, plot_losses, running_mean


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def lines(steps: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"step": 0, "eval_loss": 3.0}]
    for step in range(1, steps + 1):
        found.append({"step": step, "loss": 3.0 / step, "learning_rate": 1e-4 * step})
    return [*found, {"step": steps, "eval_loss": 1.0}]


@pytest.mark.parametrize(
    "metrics",
    [[], lines(1), lines(60), [{"step": 1, "loss": None, "learning_rate": 1e-4}], lines(3)[1:-1]],
    ids=["nothing", "one step", "many", "not a number", "no evaluation"],
)
def test_any_metrics_give_a_picture(tmp_path: Path, metrics: list[dict[str, Any]]) -> None:
    plot_losses(metrics, tmp_path / "loss.png")
    assert size(tmp_path / "loss.png") == (960, 600)
    assert [path.name for path in tmp_path.iterdir()] == ["loss.png"]


def test_drawn_at_checkpoints_and_at_the_end(tmp_path: Path) -> None:
    metrics, picture = tmp_path / "metrics.jsonl", tmp_path / "loss.png"
    metrics.write_text("\n".join(map(json.dumps, lines(5))), encoding="utf8")
    plot = LossPlot(metrics, picture)
    plot.on(Started(num_steps=5, first_step=0, steps_per_epoch=5))
    assert not picture.exists()
    for event in (Saved(3, tmp_path, 0.1), Ended(5, 1.0, "done")):
        plot.on(event)
        assert size(picture)
        picture.unlink()


def test_no_global_figures_are_touched(tmp_path: Path) -> None:
    plot_losses(lines(2), tmp_path / "loss.png")
    assert "matplotlib.pyplot" not in sys.modules


def test_the_running_mean_starts_at_the_first_value_and_keeps_a_constant() -> None:
    assert running_mean([2.0] * 5) == pytest.approx([2.0] * 5)
    long = running_mean([4.0, 0.0] * 500)
    assert long[1] == pytest.approx((0.1 * 0.0 + 0.09 * 4.0) / 0.19)  # weights 0.1 and 0.1 * 0.9 of what is known
    assert long[-1] == pytest.approx(2.0, abs=0.2)


def test_the_running_mean_of_a_short_run_does_not_trail() -> None:
    falling = [4.0 - 0.2 * step for step in range(20)]
    assert max(mean - value for mean, value in zip(running_mean(falling), falling, strict=True)) < 0.25
