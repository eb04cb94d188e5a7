"""run.json: what ran, with which versions and settings, what was replaced, how it ended."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "ftkit",
    "torch",
    "transformers",
    "peft",
    "bitsandbytes",
    "accelerate",
    "datasets",
    "deepspeed",
    "safetensors",
)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run.

    Args:
        settings: the recipe as it really ran, by section.
        substitutions: each with key, asked, used, reason.
        model: parameters, trainable share, bytes.
        data: the report of preparation.
        timings: seconds by phase.
        result: steps, losses, how it ended, speed, memory.
        samples: prompt, before, after.
    """

    settings: Mapping[str, Any]
    substitutions: Sequence[Mapping[str, str]] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[Mapping[str, str]] = ()


def write_run_file(path: Path, record: RunRecord) -> None:
    """Write `record`, with the machine and the versions of the packages, as JSON."""
    values = {"versions": versions(), "machine": machine(), **asdict(record)}
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(values, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf8")
    partial.replace(path)


def versions() -> dict[str, str]:
    """Versions of Python and of those of our packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str]:
    """The system and the processor; nothing that names the machine or its user."""
    return {"system": platform.system(), "release": platform.release(), "processor": platform.machine()}
