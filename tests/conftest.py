"""Fixtures shared by all tests: the corpus of real recipes, rows, templates, tokenizers and faults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before torch is loaded: threads that wait must not spin for long, or tests that share the cores slow one another.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real material (FTKIT_CORPUS, default ../shared); tests that need it skip where it is absent."""
    folder = Path(os.environ.get("FTKIT_CORPUS", ROOT.parent / "shared"))
    if not (folder / "recipes").is_dir():
        pytest.skip(f"no corpus of real material at {folder} (set FTKIT_CORPUS)")
    return folder
