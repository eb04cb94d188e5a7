"""Tiny random models, saved once a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from model_zoo import Saved, tiny_config
from transformers import AutoModelForCausalLM


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny operations gain nothing from threads, and lose much where other processes want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Name of an architecture -> folder with a random model of it."""
    folders: dict[str, Path] = {}

    def save(name: str) -> Path:
        if name not in folders:
            torch.manual_seed(0)
            net = AutoModelForCausalLM.from_config(tiny_config(name), dtype=torch.float32)
            for parameter in net.parameters():  # biases and norms start at 0 and 1, which would hide a mix-up
                parameter.data += 0.05 * torch.randn_like(parameter)
            folders[name] = tmp_path_factory.mktemp(name)
            net.save_pretrained(folders[name])
        return folders[name]

    return save
