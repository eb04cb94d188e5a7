"""metrics.jsonl: one line a logged step, one an evaluation, under the keys of `Logged` and `Evaluated`."""

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
        """Write a line for what is measured; each is on its way to the disk at once."""
        if isinstance(event, Started):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            cut_after(self.path, event.first_step)
        elif isinstance(event, Logged | Evaluated):
            values = {key: finite(value) for key, value in asdict(event).items()}
            with self.path.open("a", encoding="utf8") as file:
                file.write(json.dumps(values, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """`value`, or None where JSON has no number for it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cut_after(path: Path, step: int) -> None:
    """Keep the lines up to `step`; none when the run starts anew."""
    kept = [line for line in read_metrics(path) if line["step"] <= step] if step else []
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf8")
    partial.replace(path)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file; a last line that a kill cut short is left out."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf8").splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            yield values
