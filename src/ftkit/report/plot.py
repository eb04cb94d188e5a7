"""loss.png: training loss, its running mean, evaluation loss, and the learning rate below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftkit.report.events import Ended, Event, Saved
from ftkit.report.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAIN, EVALUATION, RATE = "#4C72B0", "#C44E52", "#55A868"
SMOOTHING = 0.9  # weight of the past in the running mean of a long run
FEW = 40  # up to so many steps, each is a dot


class LossPlot:
    """Draws the picture from the run's metrics file, so that a resumed run shows all of it.

    At each checkpoint too: a run that is killed leaves its curve.

    Args:
        metrics: output_dir/metrics.jsonl.
        path: output_dir/loss.png.
    """

    def __init__(self, metrics: Path, path: Path) -> None:
        self.metrics, self.path = metrics, path

    def on(self, event: Event) -> None:
        """Draw when there is something new to keep."""
        if isinstance(event, Saved | Ended):
            plot_losses(list(read_metrics(self.metrics)), self.path)


def plot_losses(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the lines of a metrics file into `path`; a picture that is there already is replaced as a whole.

    A figure of its own, without pyplot: no window system, no state shared with a notebook that called the run.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    draw_losses(losses, column(lines, "loss"), column(lines, "eval_loss"))
    draw_rates(rates, column(lines, "learning_rate"))
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        canvas.print_png(file)
    partial.replace(path)


def column(lines: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of the lines that have a number under `key`."""
    points = [(line["step"], float(line[key])) for line in lines if line.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def draw_losses(axes: Axes, training: tuple[list[int], list[float]], evaluation: tuple[list[int], list[float]]) -> None:
    """Both losses into one field."""
    steps, values = training
    marker = "." if len(steps) <= FEW else None
    axes.plot(steps, values, color=TRAIN, alpha=0.4, linewidth=1, marker=marker, label="training loss")
    if len(steps) > 1:
        mean = running_mean(values)
        axes.plot(steps, mean, color=TRAIN, linewidth=2, label="its running mean")
        name_last(axes, steps, mean, TRAIN, -12)
    if evaluation[0]:
        axes.plot(*evaluation, color=EVALUATION, marker="o", label="evaluation loss")
        name_last(axes, *evaluation, EVALUATION, 6)
    axes.set(ylabel="loss per target token")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False)


def name_last(axes: Axes, x: Sequence[int], y: Sequence[float], color: str, above: int) -> None:
    """Write the last value beside its point, `above` points higher."""
    axes.annotate(f"{y[-1]:.3g}", (x[-1], y[-1]), xytext=(4, above), textcoords="offset points", color=color)


def draw_rates(axes: Axes, rates: tuple[list[int], list[float]]) -> None:
    """The learning rate."""
    from matplotlib.ticker import MaxNLocator

    axes.plot(*rates, color=RATE, marker="." if len(rates[0]) == 1 else None)
    axes.set(xlabel="optimizer step", ylabel="learning rate", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # half a step is none
    axes.ticklabel_format(axis="y", scilimits=(0, 0))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def running_mean(values: Sequence[float]) -> list[float]:
    """Exponential mean without the bias of its start (Kingma & Ba 2015, section 3).

    It looks back over a twentieth of the run, so that it does not trail behind a short one, and over 10 steps at most.
    """
    weight = min(SMOOTHING, 1 - 1 / (1 + len(values) / 20))
    smooth, past = [], 0.0
    for count, value in enumerate(values, 1):
        past = weight * past + (1 - weight) * value
        smooth.append(past / (1 - weight**count))
    return smooth
