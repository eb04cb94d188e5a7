"""Byte parameters in the form that this torch can share out.

torch before 2.13 cannot: its `fully_shard` builds every parameter with `requires_grad`, which only floats may have.
There the same bytes are looked at as float8: nothing computes with that view, so no bit of it changes (a bfloat16 view
does: casts rewrite what spells NaN). The layer looks at the bytes again when it decodes (`model/quantized.py`).
"""

from __future__ import annotations

import functools

import torch
from torch import nn

CONTAINER = torch.float8_e5m2


def shardable(module: nn.Module) -> None:
    """Give the byte parameters of `module` a dtype that can be shared out, where uint8 cannot."""
    if holds_bytes():
        return
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if parameter.dtype == torch.uint8:
                setattr(part, name, nn.Parameter(parameter.detach().view(CONTAINER), requires_grad=False))


@functools.cache
def holds_bytes() -> bool:
    """Whether `fully_shard` takes uint8 parameters."""
    major, minor = (int(number) for number in torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 13)
