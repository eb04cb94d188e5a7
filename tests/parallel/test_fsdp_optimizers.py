from __future__ import annotations

import pytest
import torch

from ftkit.errors import BackendError
from ftkit.optim.build import build_optimizer
from ftkit.parallel.fsdp import refuse_unshardable
from ftkit.recipe.section.optimization import OptimizationSection

CPU = torch.device("cpu")


def test_an_optimizer_that_cannot_step_shared_parameters_is_refused() -> None:
    with pytest.raises(BackendError) as caught:
        refuse_unshardable(build_optimizer(OptimizationSection(optimizer="adafactor", learning_rate=1e-3), CPU))
    assert str(caught.value) == (
        "optimizer: this optimizer cannot step parameters that FSDP has shared out\n"
        "help: take adamw_torch, muon or one of 8 bits, or leave fsdp out and train with DDP"
    )


@pytest.mark.parametrize("name", ["adamw_torch", "muon", "paged_adamw_8bit", "sgd"])
def test_others_are_not(name: str) -> None:
    refuse_unshardable(build_optimizer(OptimizationSection(optimizer=name, learning_rate=1e-3), CPU))
