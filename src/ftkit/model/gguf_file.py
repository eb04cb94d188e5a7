"""A model in a GGUF file, converted once to Hugging Face format, so that everything behind reads what it always reads.

The converted model (safetensors, tokenizer with its chat template) lies in a cache folder named by the file and a
digest of it. transformers decodes the file, all of it in host memory once: 2 bytes a weight, 4 where the file holds
float32. It is written beside and renamed, so that a folder under the final name is always whole, and under a lock, so
that of several processes one converts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftkit.errors import ModelError
from ftkit.model.checkpoint_files import add_samples
from ftkit.optional import need

SUFFIX = ".gguf"


def gguf_of(base_model: str, gguf_file: str | None) -> Path | None:
    """The GGUF file that a recipe names, if any: `gguf_file` in the folder `base_model`, or `base_model` itself.

    Raises:
        ModelError: there is no such file.
    """
    if gguf_file is None and not base_model.endswith(SUFFIX):
        return None
    file = Path(base_model).expanduser() / (gguf_file or "")
    if not file.is_file():
        raise ModelError(
            "no such GGUF file",
            where=f"gguf_file: {gguf_file}" if gguf_file else f"base_model: {base_model}",
            help="base_model names its folder on this machine; download it from the hub first",
        )
    return file


def folder_of_gguf(file: Path, cache: Path) -> Path:
    """The folder in `cache` with the model of `file` in Hugging Face format, converted at the first call.

    Raises:
        ModelError: the package gguf is not installed, or the file is not one that transformers can decode.
    """
    need("gguf", extra="demo", purpose=f"base_model: {file}", error=ModelError)
    hasher = sha256()
    add_samples(hasher, file)
    folder = cache / "models" / f"{file.stem}-{hasher.hexdigest()[:12]}"
    return converted_once(folder, lambda to: convert_gguf(file, to, dtype_of(file)))


def cache_folder() -> Path:
    """Where converted models live; $FTKIT_CACHE, else ~/.cache/ftkit."""
    return Path(os.environ.get("FTKIT_CACHE") or Path.home() / ".cache" / "ftkit")


def converted_once(folder: Path, convert: Callable[[Path], None]) -> Path:
    """Return `folder`, which `convert` has filled, now or earlier."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():  # another process may have been faster
                write_beside(convert, folder)
    return folder


def write_beside(convert: Callable[[Path], None], folder: Path) -> None:
    """Convert into a new folder next to `folder`, and rename it when it is whole."""
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    try:
        convert(partial)
        partial.chmod(0o755)  # mkdtemp makes it private
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def dtype_of(file: Path) -> torch.dtype:
    """That of the file's matrices where it is float32 or float16; what is quantized or mixed becomes bfloat16."""
    from gguf import GGUFReader  # an optional package; `need` has been asked

    try:
        tensors = GGUFReader(file).tensors
    except (OSError, ValueError, KeyError, IndexError) as problem:
        raise refused(file, problem) from problem
    kinds = {tensor.tensor_type.name for tensor in tensors if len(tensor.shape) > 1}
    return {frozenset({"F32"}): torch.float32, frozenset({"F16"}): torch.float16}.get(frozenset(kinds), torch.bfloat16)


def convert_gguf(file: Path, to: Path, dtype: torch.dtype) -> None:
    """Write the model and the tokenizer of `file` to the folder `to` in Hugging Face format."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        from_gguf = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)
    except (OSError, ValueError, KeyError, NotImplementedError, AttributeError, TypeError) as problem:
        raise refused(file, problem) from problem
    del from_gguf.config.quantization_config  # transformers refuses to save what it once read from GGUF
    with torch.device("meta"):
        net = AutoModelForCausalLM.from_config(from_gguf.config, dtype=dtype)  # type: ignore[no-untyped-call]
    net.load_state_dict(from_gguf.state_dict(), assign=True)
    net.tie_weights()
    net.save_pretrained(to)
    tokenizer.save_pretrained(to)


def refused(file: Path, problem: Exception) -> ModelError:
    """What to say of a file that cannot be decoded."""
    said = (str(problem).strip() or type(problem).__name__).splitlines()[0]
    return ModelError(
        f"transformers cannot decode this GGUF file ({said})",
        where=str(file),
        help="use the model's own checkpoint in Hugging Face format",
    )
