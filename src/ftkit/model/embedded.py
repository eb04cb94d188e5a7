"""The model that comes as a Python package, so that the first run needs no hub and no account."""

from __future__ import annotations

from pathlib import Path

PREFIX = "ftkit:"


def is_embedded(base_model: str) -> bool:
    """Whether `base_model` names a model of a Python package, such as `ftkit:smollm2-135m-instruct`."""
    return base_model.startswith(PREFIX)


def materialize(base_model: str) -> Path:
    """Return the folder of the embedded model, in Hugging Face format."""
    raise NotImplementedError
