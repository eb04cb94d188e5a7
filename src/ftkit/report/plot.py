"""loss.png: training loss, its running mean, evaluation loss, and the learning rate below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftkit.report.events import Ended, Event
from ftkit.report.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAIN, EVALUATION, RATE = "#4C72B0", "#C44E52", "#55A868"
SMOOTHING = 0.9  # weight of the past in the running mean


class LossPlot:
    """Draws the picture when a run ends, from its metrics file, so that a resumed run shows all of it.

    Args:
        metrics: output_dir/metrics.jsonl.
        path: output_dir/loss.png.
    """

    def __init__(self, metrics: Path, path: Path) -> None:
        self.metrics, self.path = metrics, path

    def on(self, event: Event) -> None:
        """Draw at the end."""
        if isinstance(event, Ended):
            plot_losses(list(read_metrics(self.metrics)), self.path)


def plot_losses(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the lines of a metrics file into `path`."""
    from matplotlib.figure import Figure

    steps = [line for line in lines if line.get("loss") is not None]
    evaluations = [line for line in lines if line.get("eval_loss") is not None]
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    draw_losses(losses, steps, evaluations)
    rates.plot([line["step"] for line in steps], [line["learning_rate"] for line in steps], color=RATE)
    rates.set(xlabel="optimizer step", ylabel="learning rate", ylim=(0, None))
    figure.savefig(path)


def draw_losses(axes: Axes, steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> None:
    """Both losses into one field."""
    x, y = [line["step"] for line in steps], [line["loss"] for line in steps]
    axes.plot(x, y, color=TRAIN, alpha=0.35, marker="." if len(x) < 3 else None, label="training loss")
    axes.plot(x, running_mean(y), color=TRAIN, label="running mean")
    if evaluations:
        points = [line["step"] for line in evaluations], [line["eval_loss"] for line in evaluations]
        axes.plot(*points, color=EVALUATION, marker="o", label="evaluation loss")
    axes.set(ylabel="loss per target token")
    axes.grid(alpha=0.3)
    axes.legend()


def running_mean(values: Sequence[float]) -> list[float]:
    """Exponential mean without the bias of its start (Kingma & Ba 2015, section 3)."""
    smooth, past = [], 0.0
    for count, value in enumerate(values, 1):
        past = SMOOTHING * past + (1 - SMOOTHING) * value
        smooth.append(past / (1 - SMOOTHING**count))
    return smooth
