"""The module that the loop calls: DeepSpeed's engine, with the caller's autocast kept."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn


class EngineModule(nn.Module):
    """Calls the engine; inside, products have the dtype of the autocast this module was called under.

    DeepSpeed turns an autocast that is not its own off around the net's forward, and its own (`torch_autocast`) would
    also round what ranks send each other. So the autocast is put on again by hooks of the net itself.

    Args:
        engine: of `deepspeed.initialize`.
        net: what it was given.
        device_type: of the autocast.
    """

    def __init__(self, engine: nn.Module, net: nn.Module, device_type: str) -> None:
        super().__init__()
        self.engine = engine
        self.config = getattr(net, "config", None)  # the net's; the engine has one of the same name, DeepSpeed's
        self.device_type = device_type
        self.products: AbstractContextManager[object] | None = None
        net.register_forward_pre_hook(self.turn_on)
        net.register_forward_hook(self.turn_off, always_call=True)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """What the net returns."""
        kind = self.device_type
        if not torch.is_autocast_enabled(kind):
            return self.engine(*arguments, **named)
        self.products = torch.autocast(kind, torch.get_autocast_dtype(kind))
        try:
            with torch.autocast(kind, enabled=False):
                return self.engine(*arguments, **named)
        finally:
            self.products = None

    def turn_on(self, net: nn.Module, inputs: Any) -> None:
        """Before the net's forward."""
        if self.products is not None:
            self.products.__enter__()

    def turn_off(self, net: nn.Module, inputs: Any, output: Any) -> None:
        """After it, also when it failed."""
        if self.products is not None:
            self.products.__exit__(None, None, None)
