"""The shape a tensor of the net has when it is whole, whatever a backend has done to it."""

from __future__ import annotations

import torch
from torch import Tensor


def whole_shape(tensor: Tensor) -> torch.Size:
    """Return the net's own shape of `tensor`.

    A DTensor (FSDP2) says it itself; a parameter that DeepSpeed's stage 3 has taken away is empty and keeps it aside.
    """
    return torch.Size(getattr(tensor, "ds_shape", tensor.shape))
