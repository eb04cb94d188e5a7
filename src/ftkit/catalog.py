"""Every name a recipe may use for a part, and where that part lives.

A value is `module:attribute`, imported only when a recipe asks for it, so that this table can be read without torch.
Adding a part is one file and one line here; the contract tests run over these tables.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

FORMATS: Mapping[str, str] = {}
TEMPLATES: Mapping[str, str] = {}
QUANTIZERS: Mapping[str, str] = {
    "nf4": "ftkit.model.nf4:NF4Linear",
    "fp4": "ftkit.model.nf4:FP4Linear",
}
OPTIMIZERS: Mapping[str, str] = {}
SCHEDULES: Mapping[str, str] = {}
BACKENDS: Mapping[str, str] = {}
TRACKERS: Mapping[str, str] = {}


def load(target: str) -> Any:
    """Import the part behind one of the `module:attribute` values above."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
