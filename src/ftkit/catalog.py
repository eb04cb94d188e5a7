"""Every name a recipe may use for a part, and where that part lives.

A value is `module:attribute`, imported only when a recipe asks for it, so that this table can be read without torch.
Adding a part is one file and one line here; the contract tests run over these tables.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

FORMATS: Mapping[str, str] = {
    "sharegpt": "ftkit.data.formats.sharegpt:build",
    "chat_template": "ftkit.data.formats.messages:build",
    "chat_template.default": "ftkit.data.formats.messages:build",
    "alpaca": "ftkit.data.formats.alpaca:build",
    "alpaca:chat": "ftkit.data.formats.alpaca:build_chat",
    "alpaca_chat": "ftkit.data.formats.alpaca:build_chat",
    "alpaca_chat.load_qa": "ftkit.data.formats.alpaca:build_question_answer",
    "alpaca_w_system.load_open_orca": "ftkit.data.formats.alpaca:build_open_orca",
    "gpteacher": "ftkit.data.formats.alpaca:build_gpteacher",
    "completion": "ftkit.data.formats.completion:build",
    "pretrain": "ftkit.data.formats.completion:build",
    "input_output": "ftkit.data.formats.input_output:build",
}
TEMPLATES: Mapping[str, str] = {
    "chatml": "ftkit.data.templates.chatml:TEMPLATE",
}
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
