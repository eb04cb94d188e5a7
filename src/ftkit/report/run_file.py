"""run.json: what ran, with which versions and settings, what was replaced, how it ended."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from ftkit.report.metrics import finite

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
    "tokenizers",
    "pydantic",
    "numpy",
)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run.

    Args:
        settings: the recipe as it really ran, by section.
        substitutions: each with key, asked, used, reason.
        model: parameters, trainable share, bytes.
        tokens: special and new tokens as they were used.
        data: the report of preparation.
        timings: seconds by phase, on rank 0.
        backend: its name, the number of processes, and seconds and memory by phase on each.
        result: steps, losses, how it ended, speed, memory.
        samples: prompt, before, after.
    """

    settings: Mapping[str, Any]
    substitutions: Sequence[Mapping[str, str]] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    backend: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[Mapping[str, str]] = ()


def write_run_file(path: Path, record: RunRecord) -> None:
    """Write `record`, with the machine and the versions of the packages, as JSON; the file is whole or not there."""
    values = plain({"versions": versions(), "machine": machine(), **asdict(record)})
    partial = path.with_name(path.name + ".partial")
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    partial.write_text(text, encoding="utf8", errors="replace")  # half a surrogate pair out of a model's answer
    partial.replace(path)


def plain(value: Any) -> Any:
    """`value` as JSON knows it: no NaN, no tuples, text for anything else (paths, dtypes)."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return finite(value) if isinstance(value, str | int | float | bool | None) else str(value)


def versions() -> dict[str, str]:
    """Versions of Python, of those of our packages that are installed, and of the CUDA that torch was built for."""
    import torch

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found | ({"cuda": str(torch.version.cuda)} if torch.version.cuda else {})


def machine() -> dict[str, Any]:
    """The system and its processors; nothing that names the machine or its user."""
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "system": platform.system(),
        "release": platform.release(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "devices": devices,
    }
