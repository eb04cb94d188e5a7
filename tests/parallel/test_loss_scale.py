"""Loss scaling against torch's GradScaler, and what a skipped step leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ftkit.errors import BackendError
from ftkit.parallel.backend import World
from ftkit.parallel.loss_scale import FIRST, GROWTH_INTERVAL, LossScale
from ftkit.parallel.single import SingleBackend

CPU = World(0, 1, 0, 1, torch.device("cpu"))


def backend_of(net: nn.Module, *, max_norm: float = 1.0) -> tuple[SingleBackend, list[str]]:
    backend, said = SingleBackend(CPU), []  # type: ignore[var-annotated]

    def groups(net: nn.Module) -> list[dict[str, Any]]:
        return [{"params": list(net.parameters())}]

    backend.finish(net, lambda net: None, groups, lambda groups: torch.optim.SGD(groups, lr=0.1), max_norm)
    backend.scale.begin(said.append)
    return backend, said


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(8, 4)


@pytest.mark.parametrize("max_norm", [0.0, 0.5])
def test_steps_are_those_of_torchs_scaler(max_norm: float) -> None:
    net, theirs, x = linear(), linear(), torch.randn(16, 8)
    backend, said = backend_of(net, max_norm=max_norm)
    optimizer, scaler = torch.optim.SGD(theirs.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for step in range(6):
        factor = 1e38 if step == 2 else 1.0  # times the scale it overflows float32 as gradients of float16 do theirs
        backend.backward((net(x).square().mean() + 1e-3) * factor, last=True)
        norm = backend.step()
        optimizer.zero_grad()
        scaler.scale((theirs(x).square().mean() + 1e-3) * factor).backward()
        scaler.unscale_(optimizer)
        their_norm = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm or 1e30)
        scaler.step(optimizer)
        scaler.update()
        for mine, wanted in zip(net.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=1e-7)
        assert backend.scale.value == scaler.get_scale()
        if step != 2:
            assert norm == pytest.approx(float(their_norm), rel=1e-5)
    assert said == ["gradients overflowed float16: step skipped, the loss is scaled by 32768 now"]


def test_a_skipped_step_changes_nothing_and_leaves_no_gradient() -> None:
    net = linear()
    backend, _ = backend_of(net)
    before = [p.clone() for p in net.parameters()]
    backend.backward(net(torch.full((1, 8), 1e36)).sum(), last=True)
    assert backend.step() == float("inf")
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    assert float(backend.loss) == 0


def test_a_loss_that_is_not_finite_is_refused_not_skipped() -> None:
    net = linear()
    backend, said = backend_of(net)
    backend.backward(net(torch.full((1, 8), float("nan"))).sum(), last=True)
    with pytest.raises(BackendError, match="the loss is not finite, got nan"):
        backend.step()
    assert said == []


def test_gradients_that_overflow_without_a_scale_are_refused() -> None:
    scale = LossScale()
    scale.begin(lambda note: None)
    skipped = 0
    while scale.skips(float("inf"), 1.0):
        skipped += 1
    assert skipped == 16  # 65536 down to 1
    assert scale.value == 1


def test_many_good_steps_double_the_scale_and_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    scale = LossScale()
    scale.begin(lambda note: None)
    for _ in range(GROWTH_INTERVAL + 3):
        assert not scale.skips(1.0, 1.0)
    assert (scale.value, scale.good_steps) == (2 * FIRST, 3)
    scale.save(tmp_path)
    again = LossScale()
    again.load(tmp_path)
    assert again.value == 1, "off until it is begun"
    again.begin(lambda note: None)
    again.load(tmp_path)
    assert (again.value, again.good_steps) == (2 * FIRST, 3)


def test_float16_products_learn_what_float32_learns() -> None:
    """Gradients around 1e-8, which float16 has no numbers for unless the loss is scaled."""
    torch.manual_seed(1)
    x, goal = torch.randn(64, 8), torch.randn(64, 4)
    nets = linear(), linear()
    for net, dtype in zip(nets, (torch.float16, None), strict=True):
        backend, _ = backend_of(net, max_norm=0.0)
        for _ in range(5):
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                y = net(x)
            backend.backward((y.float() - goal).square().mean() * 1e-6, last=True)
            for group in backend.optimizer.param_groups:
                group["lr"] = 1e5
            backend.step()
    assert not torch.equal(nets[1].weight, linear().weight)
    torch.testing.assert_close(nets[0].weight, nets[1].weight, rtol=1e-2, atol=1e-3)
