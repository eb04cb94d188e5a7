"""metrics.jsonl: one line a logged step, one an evaluation, under the keys of `Logged` and `Evaluated`.

An evaluation's line has `eval_perplexity` besides. What is not a finite number is null: any JSON reader takes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftkit.report.events import Evaluated, Event, Logged, Started


class MetricsFile:
    """Writes the file; a resumed run first takes off what the earlier one wrote after its checkpoint.

    Args:
        path: output_dir/metrics.jsonl.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on(self, event: Event) -> None:
        """Write a line for what is measured; it has left the process when this returns."""
        match event:
            case Started():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                truncate_after(self.path, event.first_step)
            case Logged():
                self.append(asdict(event))
            case Evaluated():
                self.append({**asdict(event), "eval_perplexity": perplexity(event.eval_loss)})
            case _:
                pass

    def append(self, values: dict[str, Any]) -> None:
        """Add a line."""
        with self.path.open("a", encoding="utf8") as file:
            file.write(json.dumps({key: finite(value) for key, value in values.items()}, allow_nan=False) + "\n")


def perplexity(loss: float) -> float:
    """The loss per token as a number of equally likely tokens; infinite where a float cannot hold it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def finite(value: Any) -> Any:
    """`value`, or None where JSON has no number for it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def truncate_after(path: Path, step: int) -> None:
    """Keep the lines up to `step`; none when that is 0 and the run starts anew. The file is replaced as a whole."""
    kept = [line for line in read_metrics(path) if line["step"] <= step] if step else []
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf8")
    partial.replace(path)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file; those that a kill or a full disk left broken are passed over."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf8", errors="replace").splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            yield values
