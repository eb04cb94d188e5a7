from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ftkit.parallel.zero_module import EngineModule


class Net(nn.Module):
    """Says in which dtype its product is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.config = {"router_aux_loss_coef": 0.5}

    def forward(self, x: torch.Tensor, *, fails: bool = False) -> torch.dtype:
        if fails:
            raise ValueError("broken")
        return self.linear(x).dtype


class Engine(nn.Module):
    """Turns the caller's autocast off, as DeepSpeed's engine does."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.module = net
        self.config = {"train_batch_size": 1}

    def forward(self, *arguments: Any, **named: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return self.module(*arguments, **named)


def test_the_callers_autocast_reaches_the_net() -> None:
    net = Net()
    module = EngineModule(Engine(net), net, "cpu")
    x = torch.ones(1, 4)
    assert module(x) is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x) is torch.bfloat16
        assert module.engine(x) is torch.float32  # what would happen without
    assert module(x) is torch.float32
    assert module.config is net.config


def test_a_net_that_fails_leaves_no_autocast_behind() -> None:
    net = Net()
    module = EngineModule(Engine(net), net, "cpu")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="broken"):
        module(torch.ones(1, 4), fails=True)
    assert not torch.is_autocast_enabled("cpu")
    assert module(torch.ones(1, 4)) is torch.float32
    assert net(torch.ones(1, 4)) is torch.float32
