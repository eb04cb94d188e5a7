"""The tensors of a model in safetensors files, or in torch's own, read lazily through mmap.

In: a folder or hub id. Out: `Weights`, which knows names and shapes without reading, and reads one tensor at a time.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ftkit.errors import ModelError
from ftkit.hub import is_cached, is_lfs_pointer, why_silent
from ftkit.model.prequantized import find_packed

GIT_LFS = "run `git lfs pull` in that folder"
HEAD_BYTES = 100_000_000  # the most that safetensors allows
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
TORCH_SINGLE, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
FORMATS = ((SINGLE, INDEX), (TORCH_SINGLE, TORCH_INDEX))  # the first that is there is taken
NUM_SAMPLES, SAMPLE_BYTES = 64, 64 * 1024  # of each file, for `fingerprint`


class SafetensorsFile:
    """One safetensors file; its header is checked against its length.

    Raises:
        ModelError: it is no such file, or not whole.
    """

    def __init__(self, file: Path) -> None:
        try:
            self._handle: Any = safe_open(str(file), framework="pt")
        except (SafetensorError, OSError, ValueError) as problem:
            raise broken(file, "safetensors", problem) from problem

    def names(self) -> list[str]:
        """Its tensors' names."""
        return list(self._handle.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from the header."""
        return tuple(self._handle.get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """A tensor on the CPU."""
        tensor: Tensor = self._handle.get_tensor(name)
        return tensor


class TorchFile:
    """One file of `torch.save`, read without running any code it may hold; pages come in as tensors are used.

    Raises:
        ModelError: it is no such file, not whole, or holds anything but tensors by name.
    """

    def __init__(self, file: Path) -> None:
        try:
            try:
                values = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # files from before torch 1.6 cannot be mapped
                values = torch.load(file, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, OSError, ValueError, EOFError) as problem:
            raise broken(file, "torch", problem) from problem
        if not isinstance(values, Mapping) or not all(isinstance(value, Tensor) for value in values.values()):
            raise ModelError(
                "the file must hold tensors by name and nothing else",
                where=str(file),
                help="save model.state_dict(), best as safetensors",
            )
        self._values: Mapping[str, Tensor] = values

    def names(self) -> list[str]:
        """Its tensors' names."""
        return list(self._values)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._values[name].shape)

    def read(self, name: str) -> Tensor:
        """A tensor on the CPU."""
        return self._values[name].detach()


def broken(file: Path, kind: str, problem: Exception) -> ModelError:
    """What to say of a file of weights that cannot be opened."""
    if is_lfs_pointer(file):
        return ModelError("the file is a git-lfs pointer, not the weights", where=str(file), help=GIT_LFS)
    if isinstance(problem, pickle.UnpicklingError) and "Unsupported global" in str(problem):
        return ModelError(
            "the file holds more than tensors; ftkit runs no code out of weights",
            where=str(file),
            help="use the model's safetensors, or convert the file where you trust it",
        )
    size, said = file.stat().st_size, (str(problem).strip() or type(problem).__name__).splitlines()[0]
    return ModelError(
        f"not a whole {kind} file ({said}), got {size:,} bytes" if size else "the file is empty",
        where=str(file),
        help="download or copy it again; the transfer may have been cut off",
    )


class Weights:
    """Names, shapes and values of the tensors in `files`; what does not end in .safetensors is torch's.

    A weight that bitsandbytes has quantized, several tensors in the files, is one here; see `prequantized`.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[str, SafetensorsFile | TorchFile] = {}
        for file in files:
            opened = SafetensorsFile(file) if file.suffix == ".safetensors" else TorchFile(file)
            self._files.update(dict.fromkeys(opened.names(), opened))
        self.packed = find_packed(self._files, self.read_stored)
        self._parts = {part for packed in self.packed.values() for part in packed.parts}

    def names(self) -> list[str]:
        """All tensors' names."""
        return [name for name in self._files if name not in self._parts]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from the file's header."""
        return self.packed[name].shape if name in self.packed else self._files[name].shape(name)

    def read(self, name: str) -> Tensor:
        """The tensor on the CPU, in the file's dtype; its memory may be the file's own pages, so never write to it."""
        return self.packed[name].floats() if name in self.packed else self.read_stored(name)

    def read_stored(self, name: str) -> Tensor:
        """The same, with quantized weights as the bytes they are in the file."""
        return self._files[name].read(name)

    def empty(self, name: str) -> Tensor:
        """A tensor of that shape without memory."""
        return torch.empty(self.shape(name), device="meta")


def open_weights(source: str, revision: str | None) -> Weights:
    """Open the safetensors files of a folder or a hub id; see `weight_files`."""
    return Weights(weight_files(source, revision))


def fingerprint(source: str, revision: str | None) -> str:
    """What the weights of a folder or hub id are, at a glance: number of files, bytes, and a digest of samples.

    The digest covers each file's size, its head with all names, dtypes and shapes, and values from all over it, at
    most 4 MiB a file; training moves every weight a little, so other weights do not look the same.

    Raises:
        ModelError: as `weight_files`.
    """
    files = weight_files(source, revision)
    hasher, total = sha256(), 0
    for file in files:
        size = file.stat().st_size
        hasher.update(f"{file.name} {size}".encode())
        with file.open("rb") as opened:
            head = opened.read(8)
            hasher.update(opened.read(min(int.from_bytes(head, "little"), size, HEAD_BYTES)))
        add_samples(hasher, file)
        total += size
    return f"{len(files)} files, {total} bytes, sha256 {hasher.hexdigest()[:16]}"


def add_samples(hasher: Any, file: Path) -> None:
    """Feed pieces from all over a file to a hash, at most 4 MiB in all."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        for sample in range(NUM_SAMPLES):
            opened.seek(sample * max(size - SAMPLE_BYTES, 0) // (NUM_SAMPLES - 1))
            hasher.update(opened.read(SAMPLE_BYTES))


def weight_files(source: str, revision: str | None) -> list[Path]:
    """The files of weights of a folder or a hub id: safetensors where there are any, else torch's.

    Raises:
        ModelError: no such folder, no weights in it, a file that its index names is missing, or one is broken.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        folder = from_hub(source, revision)
    for single, index in FORMATS:
        if (folder / index).is_file():
            files = files_of_index(folder / index)
            break
        if (folder / single).is_file():
            files = [folder / single]
            break
    else:
        raise ModelError(
            f"no weights there, neither {SINGLE} nor {INDEX}, nor {TORCH_SINGLE}",
            where=str(folder),
            help="ftkit reads safetensors and pytorch_model.bin; convert other formats first",
        )
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"files named by {index} are missing, got {', '.join(missing)}",
            where=str(folder),
            help="download them again",
        )
    return files


def from_hub(source: str, revision: str | None) -> Path:
    """The folder of the hub's cache with the weights, downloaded if the hub answers."""
    silent = why_silent()
    if silent is not None and not is_cached(source, sum(FORMATS, ()), revision):
        raise ModelError(
            f"the weights are not in the hub's cache, and cannot be had from the hub now ({silent})",
            where=f"base_model: {source}",
            help="give the folder of the model, or connect once so that the hub's cache holds it",
        )
    try:
        for single, index in FORMATS:
            patterns = [f"*{Path(single).suffix}", index]
            folder = Path(
                snapshot_download(
                    source, revision=revision, allow_patterns=patterns, local_files_only=silent is not None
                )
            )
            if (folder / single).is_file() or (folder / index).is_file():
                break
        return folder
    except (OSError, ValueError) as problem:  # the hub's errors are these; a broken connection is an OSError too
        raise ModelError(
            f"the weights cannot be downloaded ({str(problem).strip().splitlines()[0]})",
            where=f"base_model: {source}",
            help="check the name, revision_of_model, your access and the connection; a second try goes on where this "
            "one ended",
        ) from problem


def files_of_index(index: Path) -> list[Path]:
    """The files that an index names."""
    try:
        names = set(json.loads(index.read_text(encoding="utf8"))["weight_map"].values())
        return [index.parent / name for name in sorted(names)]
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        pointer = is_lfs_pointer(index)
        raise ModelError(
            "the index is a git-lfs pointer"
            if pointer
            else f"the index is not JSON with a weight_map from tensors to files ({type(problem).__name__}: {problem})",
            where=str(index),
            help=GIT_LFS if pointer else "download it again",
        ) from problem
