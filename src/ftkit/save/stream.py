"""Write a safetensors file one tensor at a time, so that memory never holds more than one.

The format wants all names, dtypes, shapes and places first; these are known from the empty net, before any tensor is
gathered. Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ftkit.errors import CheckpointError

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class TensorShape:
    """What the head of a file says of one tensor, and where from."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Size of the values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write_stream(path: Path, shapes: Mapping[str, TensorShape], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write `tensors`, which come in the order of `shapes`, to `path`, which is whole or not there.

    Raises:
        CheckpointError: a tensor is missing, or not the one `shapes` announced.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        write_file(partial, path.name, shapes, tensors)
    except OSError:  # a disk that is full gets its room back
        partial.unlink(missing_ok=True)
        raise
    partial.replace(path)


def write_file(
    partial: Path, called: str, shapes: Mapping[str, TensorShape], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Write the file that will be `called` so, once whole."""
    with partial.open("wb") as file:
        file.write(head(shapes))
        expected = iter(shapes.items())
        for name, tensor in tensors:
            announced = next(expected, None)
            if announced != (name, TensorShape(tuple(tensor.shape), tensor.dtype)):
                got = f"{name} {tuple(tensor.shape)} {tensor.dtype}"
                raise CheckpointError(f"not the tensor that was announced, got {got}", where=called)
            file.write(tensor.contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
        if missing := next(expected, None):
            raise CheckpointError("a tensor did not come", where=missing[0])


def head(shapes: Mapping[str, TensorShape]) -> bytes:
    """Length of the description, and the description: JSON, padded so that the values begin at a multiple of 8."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + shape.num_bytes
        entries[name] = {"dtype": NAMES[shape.dtype], "shape": shape.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
