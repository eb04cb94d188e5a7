"""Parameters and their optimizer's state on disk: what N ranks wrote, any number of ranks can read.

Format and names are those of `parallel/shards.py`. State with a number for each number of a parameter (AdamW's moments)
is saved as what it is, a sharded tensor. State of bitsandbytes consists of codes and scales of blocks that begin with
each rank's part, so it is saved by part, as `optimizer/NAME/KEY@RANKofSIZE`: read by as many ranks it comes back bit
for bit, by another number it is cut anew (`parallel/eight_bit.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ftkit.parallel.eight_bit import Piece, cut_anew, keeps_blocks, pieces_of
from ftkit.parallel.local_shards import LocalShards, local, part_number
from ftkit.parallel.optimizer_state import read_state, write_state
from ftkit.parallel.shards import MODEL, OPTIMIZER, alone, refuse_other_parameters, stored_tensors


def save_sharded(folder: Path, shards: LocalShards, optimizer: Optimizer, *, elementwise: bool) -> None:
    """Write each rank's parts; every rank calls it.

    Args:
        elementwise: the optimizer steps the parts, not the sharded parameters themselves.
    """
    state: dict[str, Tensor] = {f"{MODEL}{name}": parameter.detach() for name, parameter in shards.whole.items()}
    named = state_of_parts(shards, optimizer) if elementwise else read_state(optimizer, shards.whole)
    state |= {f"{OPTIMIZER}{path}": tensor for path, tensor in named.items()}
    with alone(folder, "written"):
        save(state, storage_writer=FileSystemWriter(folder, overwrite=False))


def state_of_parts(shards: LocalShards, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state over the parts: as sharded tensors, or part by part."""
    named = {}
    for path, tensor in read_state(optimizer, shards.parts).items():
        name = path.rpartition("/")[0]
        whole = shards.whole[name]
        if keeps_blocks(optimizer):
            rank, size = part_number(whole)
            named[f"{path}@{rank}of{size}"] = tensor
        else:
            named[path] = like(whole, tensor) if tensor.dim() and tensor.shape == shards.parts[name].shape else tensor
    return named


def load_sharded(
    folder: Path, shards: LocalShards, optimizer: Optimizer, *, elementwise: bool = True
) -> tuple[str, ...]:
    """Read this rank's parts, at any number of ranks; each rank for itself.

    Returns:
        What is not bit for bit as it was written, in words.

    Raises:
        CheckpointError: the checkpoint holds other parameters, or other shapes, than the net trains.
    """
    stored = stored_tensors(folder)
    refuse_other_parameters(folder, stored, shards.whole)
    state: dict[str, Tensor] = {f"{MODEL}{name}": parameter.detach() for name, parameter in shards.whole.items()}
    pieces = pieces_of(stored, shards.whole)
    for path, entry in stored.items():
        if path.startswith(OPTIMIZER) and path not in pieces:
            state[path] = place_for(entry, path, shards, elementwise=elementwise)
    mine, others = sorted_pieces(pieces, shards)
    state |= {path: empty(stored[path]) for path in mine}
    with alone(folder, "read"):
        load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    named = {
        mine[path].plain if path in mine else path.removeprefix(OPTIMIZER): local(tensor) if elementwise else tensor
        for path, tensor in state.items()
        if path.startswith(OPTIMIZER)
    }
    parameters = shards.parts if elementwise else shards.whole
    write_state(optimizer, parameters, {path: t for path, t in named.items() if has_numbers(path, parameters)})
    return cut_anew(folder, stored, others, shards, optimizer) if others else ()


def place_for(entry: TensorStorageMetadata, path: str, shards: LocalShards, *, elementwise: bool) -> Tensor:
    """An empty tensor for one entry of the state: sharded like its parameter if it has its shape."""
    whole = shards.whole.get(path.removeprefix(OPTIMIZER).rpartition("/")[0])
    if isinstance(whole, DTensor) and entry.size == whole.shape and len(entry.size):
        return like(whole, torch.empty_like(local(whole.detach()), dtype=entry.properties.dtype))
    return empty(entry)


def sorted_pieces(pieces: Mapping[str, Piece], shards: LocalShards) -> tuple[dict[str, Piece], dict[str, Piece]]:
    """Pieces that are this rank's own, and those of parameters that were cut otherwise."""
    mine, others = {}, {}
    for path, piece in pieces.items():
        rank, size = part_number(shards.whole[piece.name])
        if piece.size != size:
            others[path] = piece
        elif piece.rank == rank:
            mine[path] = piece
    return mine, others


def like(whole: Tensor, part: Tensor) -> Tensor:
    """`part` as this rank's part of a tensor that is sharded as `whole` is."""
    if not isinstance(whole, DTensor):
        return part
    return DTensor.from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def empty(entry: TensorStorageMetadata) -> Tensor:
    """Room for a tensor of the checkpoint, on the CPU."""
    return torch.empty(entry.size, dtype=entry.properties.dtype)


def has_numbers(path: str, parameters: Mapping[str, Tensor]) -> bool:
    """Whether this rank holds anything of the parameter; unknown ones are left to `write_state` to refuse."""
    parameter = parameters.get(path.rpartition("/")[0])
    return parameter is None or local(parameter).numel() > 0
