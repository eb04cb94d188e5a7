"""bitsandbytes' optimizer state, cut anew for another number of ranks.

Its blocks of 256 codes begin with each rank's part, and small parts stay in float32; another number of ranks has other
parts. So the old parts that overlap the new one are read, brought to float32, cut, and quantized again: within one
quantization of what was saved, not bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.optim import Optimizer

from ftkit.errors import CheckpointError
from ftkit.parallel.local_shards import LocalShards, part_number
from ftkit.parallel.optimizer_state import allocate
from ftkit.parallel.shards import OPTIMIZER, alone

BLOCK = 256  # codes a scale, fixed in bitsandbytes' optimizers
PIECE = re.compile(r"(?P<name>.+)/(?P<key>[^/@]+)(?:@(?P<rank>\d+)of(?P<size>\d+))?")


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor of the state of one rank's part of a parameter."""

    name: str
    key: str
    rank: int
    size: int

    @property
    def plain(self) -> str:
        """Its path as if the part were a parameter."""
        return f"{self.name}/{self.key}"


def keeps_blocks(optimizer: Optimizer) -> bool:
    """Whether the optimizer is one of bitsandbytes'."""
    return hasattr(optimizer, "init_state") and hasattr(optimizer, "update_step")


def pieces_of(stored: Iterable[str], parameters: Mapping[str, object]) -> dict[str, Piece]:
    """Which entries of a checkpoint are parts of a bitsandbytes state; one process writes its only part unmarked."""
    found = {}
    for path in stored:
        match = PIECE.fullmatch(path.removeprefix(OPTIMIZER)) if path.startswith(OPTIMIZER) else None
        if match and match["name"] in parameters:
            found[path] = Piece(match["name"], match["key"], int(match["rank"] or 0), int(match["size"] or 1))
    blocks = {piece.name for path, piece in found.items() if "@" in path or piece.key.startswith("qmap")}
    return {path: piece for path, piece in found.items() if piece.name in blocks}


def cut_anew(
    folder: Path,
    stored: Mapping[str, TensorStorageMetadata],
    pieces: Mapping[str, Piece],
    shards: LocalShards,
    optimizer: Optimizer,
) -> tuple[str, ...]:
    """Fill the state of every parameter whose `pieces` are of another number of ranks; return a note of it."""
    by_name: dict[str, dict[str, Piece]] = {}
    for path, piece in pieces.items():
        by_name.setdefault(piece.name, {})[path] = piece
    places = {id(p): (g, i) for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])}
    for name, own in by_name.items():
        part, whole = shards.parts[name], shards.whole[name]
        if part.numel():
            state = read_floats(folder, stored, own, whole, part)
            allocate(optimizer, part, *places[id(part)])
            write_floats(optimizer.state[part], state, name)
    before = next(iter(pieces.values())).size
    now = part_number(next(iter(shards.whole.values())))[1]
    return (
        f"the optimizer's 8-bit state was cut for {before} ranks; for {now} it was dequantized and quantized again",
    )


def read_floats(
    folder: Path,
    stored: Mapping[str, TensorStorageMetadata],
    own: Mapping[str, Piece],
    whole: Tensor,
    part: nn.Parameter,
) -> dict[str, Any]:
    """The state of this rank's part in float32, and its numbers (the step)."""
    first, end = rows(part_number(whole), whole.shape[0])
    wanted = {path: piece for path, piece in own.items() if overlap(piece, whole.shape[0], first, end)}
    loaded: dict[str, Any] = {
        path: torch.empty(stored[path].size, dtype=stored[path].properties.dtype) for path in wanted
    }
    with alone(folder, "read"):
        load(loaded, storage_reader=FileSystemReader(folder), no_dist=True)
    by_rank: dict[int, dict[str, Tensor]] = {}
    for path, piece in wanted.items():
        by_rank.setdefault(piece.rank, {})[piece.key] = loaded[path]
    size = next(iter(own.values())).size
    values: dict[str, list[Tensor]] = {}
    numbers: dict[str, Any] = {}
    for rank, tensors in sorted(by_rank.items()):
        start, stop = rows((rank, size), whole.shape[0])
        inside = slice(max(first - start, 0), min(end, stop) - start)
        for key, tensor in tensors.items():
            if key.startswith("state"):
                if tensor.shape != (stop - start, *whole.shape[1:]):
                    raise CheckpointError(
                        f"this optimizer's state cannot be cut for another number of ranks, got {key} of shape "
                        f"{tuple(tensor.shape)}",
                        where=str(folder),
                        help=f"resume on {size} processes, or use another optimizer",
                    )
                values.setdefault(key, []).append(as_floats(tensors, key)[inside])
            elif ":" in key:
                numbers[key.partition(":")[0]] = int(tensor.item())
    return {key: torch.cat(parts).to(part.device) for key, parts in values.items()} | numbers


def as_floats(tensors: Mapping[str, Tensor], key: str) -> Tensor:
    """`state1` in float32, from codes, map and scales if it is in 8 bit."""
    codes = tensors[key]
    if codes.dtype != torch.uint8:
        return codes.float()
    from bitsandbytes.functional import dequantize_blockwise

    number = key.removeprefix("state")
    floats: Tensor = dequantize_blockwise(
        codes, absmax=tensors[f"absmax{number}"], code=tensors[f"qmap{number}"], blocksize=BLOCK
    )
    return floats.float()


def write_floats(state: dict[str, Any], values: Mapping[str, Any], name: str) -> None:
    """Put float32 values into a state that its optimizer has laid out, in 8 bit where it keeps 8 bit."""
    from bitsandbytes.functional import quantize_blockwise

    for key, value in values.items():
        if not isinstance(value, Tensor):
            state[key] = value
        elif state[key].dtype == torch.uint8:
            number = key.removeprefix("state")
            codes, scales = quantize_blockwise(value, code=state[f"qmap{number}"], blocksize=BLOCK)
            state[key].copy_(codes)
            state[f"absmax{number}"].copy_(scales.absmax)
        else:
            state[key].copy_(value)


def rows(part: tuple[int, int], num_rows: int) -> tuple[int, int]:
    """First row and end of part (rank, size) of `num_rows`, as `torch.chunk` cuts them."""
    rank, size = part
    chunk = -(-num_rows // size)
    return min(rank * chunk, num_rows), min((rank + 1) * chunk, num_rows)


def overlap(piece: Piece, num_rows: int, first: int, end: int) -> bool:
    """Whether a piece holds any of the rows from `first` to `end`."""
    start, stop = rows((piece.rank, piece.size), num_rows)
    return start < end and first < stop
