"""The small files that go with a model: its tokenizer, generation settings and own code, copied as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

from huggingface_hub import snapshot_download

from ftkit.errors import ModelError
from ftkit.hub import why_silent
from ftkit.model.config import first_line
from ftkit.model.embedded import resolve_base_model

OF_MODEL = ("generation_config.json", "*.py")
OF_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "chat_template*",
    "tokenization_*.py",
)


def copy_beside(model: str, tokenizer: str, folder: Path) -> None:
    """Copy what goes with `model` and the tokenizer of `tokenizer` into `folder`.

    Raises:
        ModelError: the files of a hub id cannot be had.
    """
    for source, patterns in ((model, OF_MODEL), (resolve_base_model(tokenizer), OF_TOKENIZER)):
        place = folder_of(source, patterns)
        for file in sorted({file for pattern in patterns for file in place.glob(pattern) if file.is_file()}):
            shutil.copyfile(file, folder / file.name)


def folder_of(source: str, patterns: tuple[str, ...]) -> Path:
    """The folder with these files: `source` itself, or the hub's cache."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    try:
        offline = why_silent() is not None
        return Path(snapshot_download(source, allow_patterns=list(patterns), local_files_only=offline))
    except (OSError, ValueError) as problem:
        raise ModelError(
            f"the tokenizer cannot be had from the hub ({first_line(problem)})",
            where=f"model: {source}",
            help="check the name and the connection, or give a folder",
        ) from problem
