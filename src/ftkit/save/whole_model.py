"""A whole model in the files that `from_pretrained` reads: safetensors in shards, an index, config.json.

Names and shapes are worked out on meta first, so the files' heads can be written and tensors stream through: memory
holds one parameter of the net at a time, whatever the size of the model. transformers keeps some architectures under
other names in memory than in files (Mixtral's experts are one parameter in the net and three tensors an expert in the
file); its own table turns them back, one parameter at a time.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.dynamic_module_utils import custom_object_save

from ftkit.errors import CheckpointError
from ftkit.parallel.backend import Backend
from ftkit.parallel.shapes import whole_shape
from ftkit.save.stream import TensorShape, write_stream

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARD_BYTES = 5 * 10**9
INDEX = "model.safetensors.index.json"


def write_model(
    backend: Backend,
    net: PreTrainedModel,
    folder: Path,
    dtype: torch.dtype | None = None,
    *,
    shard_bytes: int = SHARD_BYTES,
    tokens: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write the model in `folder`; every rank calls it, rank 0 writes.

    Args:
        backend: holds the parameters.
        net: what `build_net` returned, without an adapter.
        folder: made if it is not there.
        dtype: of floats in the files; None as they are.
        shard_bytes: a file is closed before it grows beyond this; a parameter is never split.
        tokens: what config.json says of special tokens; as the net has it where nothing is given.

    Raises:
        CheckpointError: the architecture's files mix several parameters of the net in one tensor.
    """
    pieces = file_pieces(net, dtype)
    if not backend.world.is_main:
        for names in split(pieces, shard_bytes):
            take_part(backend.full_state(names))
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, pieces, lambda names: converted(net, backend.full_state(names), dtype), shard_bytes=shard_bytes)
    write_config(net, folder, dtype, tokens)


def write_files(
    folder: Path,
    pieces: Mapping[str, Mapping[str, TensorShape]],
    read: Callable[[list[str]], Iterable[tuple[str, Tensor]]],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> list[str]:
    """Write safetensors files and, for more than one, their index; return the files' names.

    Args:
        folder: is there.
        pieces: for each entry, the tensors it becomes in a file.
        read: makes the tensors of the entries it is given, in their order.
        shard_bytes: a file is closed before it grows beyond this; an entry is never split.
    """
    files = list(split(pieces, shard_bytes))
    names = file_names(len(files))
    for file, entries in zip(names, files, strict=True):
        shapes = {name: shape for entry in entries for name, shape in pieces[entry].items()}
        write_stream(folder / file, shapes, read(entries))
    if len(files) > 1:
        places = zip(names, files, strict=True)
        write_index(folder, {name: file for file, mine in places for key in mine for name in pieces[key]}, pieces)
    return names


def file_pieces(net: PreTrainedModel, dtype: torch.dtype | None) -> dict[str, dict[str, TensorShape]]:
    """For each entry of the net's state, tied ones once: the tensors it becomes in the file."""
    tied = set(net.all_tied_weights_keys)
    tensors = {n: t for n, t in net.state_dict(keep_vars=True).items() if n not in tied}
    empty = {n: torch.empty(whole_shape(t), dtype=t.dtype, device="meta") for n, t in tensors.items()}
    pieces = {}
    for name, tensor in empty.items():
        made = revert_weight_conversion(net, {name: tensor})
        pieces[name] = {n: TensorShape(tuple(t.shape), cast(t, dtype).dtype) for n, t in made.items()}
    whole = {name: tuple(t.shape) for name, t in revert_weight_conversion(net, empty).items()}
    if {n: shape.shape for made in pieces.values() for n, shape in made.items()} != whole:
        raise CheckpointError("files of this architecture mix several parameters", where=type(net).__name__)
    return pieces


def split(pieces: Mapping[str, Mapping[str, TensorShape]], limit: int) -> Iterator[list[str]]:
    """Names of the net's entries by file."""
    names: list[str] = []
    size = 0
    for name, made in pieces.items():
        more = sum(shape.num_bytes for shape in made.values())
        if names and size + more > limit:
            yield names
            names, size = [], 0
        names.append(name)
        size += more
    yield names


def file_names(num_files: int) -> list[str]:
    """As transformers calls them."""
    if num_files == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{num_files:05d}.safetensors" for number in range(1, num_files + 1)]


def converted(
    net: PreTrainedModel, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None
) -> Iterator[tuple[str, Tensor]]:
    """Parameters of the net, by its names, as the tensors of a file."""
    for name, tensor in tensors:
        for file_name, piece in revert_weight_conversion(net, {name: tensor}).items():
            yield file_name, cast(piece, dtype)


def write_index(folder: Path, places: Mapping[str, str], pieces: Mapping[str, Mapping[str, TensorShape]]) -> None:
    """Write which tensor lies in which file."""
    total = sum(shape.num_bytes for made in pieces.values() for shape in made.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf8")


def write_config(
    net: PreTrainedModel, folder: Path, dtype: torch.dtype | None, tokens: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write config.json as the net would be loaded again."""
    config = copy.deepcopy(net.config)
    config.architectures = [type(net).__name__]
    config.dtype = dtype or net.dtype
    config.update(dict(tokens))
    if net._auto_class is not None:  # a class of the model's own (trust_remote_code): its code goes with it
        custom_object_save(net, str(folder), config=config)  # type: ignore[arg-type]
    config.save_pretrained(folder)


def take_part(gathered: Iterable[tuple[str, Tensor]]) -> None:
    """Go through the collectives of `full_state` on a rank that writes nothing."""
    for _ in gathered:
        pass


def cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Floats in `dtype`; anything else as it is."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
