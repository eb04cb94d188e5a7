from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from ftkit.objective import cross_entropy as module
from ftkit.objective.cross_entropy import chunks, cross_entropy_sum


def both(logits: torch.Tensor, targets: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Loss and gradient, ours and torch's in float32, of the loss divided by 7."""
    results = []
    for ours in (True, False):
        leaf = logits.clone().requires_grad_()
        loss = cross_entropy_sum(leaf, targets) if ours else cross_entropy(leaf.float(), targets, reduction="sum")
        (loss / 7).backward()
        results.append([loss.detach(), leaf.grad])
    return results[0], results[1]


@pytest.mark.parametrize("chunk", [1, 40, 200, 2**26])
def test_equals_torch_in_any_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(11, 40, generator=generator) * 5
    targets = torch.randint(0, 40, (11,), generator=generator)
    ours, reference = both(logits, targets)
    torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-6)


def test_bf16_logits_lose_nothing_but_the_gradients_rounding() -> None:
    logits = (torch.randn(9, 50, generator=torch.Generator().manual_seed(2)) * 3).bfloat16()
    ours, reference = both(logits, torch.arange(9))
    torch.testing.assert_close(ours[0], reference[0], rtol=1e-6, atol=0)
    assert ours[1].dtype == torch.bfloat16
    torch.testing.assert_close(ours[1], reference[1], rtol=1e-2, atol=1e-5)


def test_weights_scale_each_targets_loss_and_gradient() -> None:
    generator = torch.Generator().manual_seed(3)
    logits, weights = torch.randn(6, 30, generator=generator), torch.rand(6, generator=generator)
    results = []
    for ours in (True, False):
        leaf = logits.clone().requires_grad_()
        each = cross_entropy(leaf, torch.arange(6), reduction="none")
        loss = cross_entropy_sum(leaf, torch.arange(6), weights) if ours else (each * weights).sum()
        (loss / 7).backward()
        results.append([loss.detach(), leaf.grad])
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)


def test_without_rows_the_zero_hangs_on_the_graph() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    loss = cross_entropy_sum(logits[:0], torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros(3, 5))


def test_chunks_cover_every_row_once() -> None:
    assert [list(range(7))[part] for part in chunks(torch.empty(7, 2**25))] == [[0, 1], [2, 3], [4, 5], [6]]


def test_large_logits_stay_finite() -> None:
    loss = cross_entropy_sum(torch.tensor([[1e4, -1e4]]), torch.tensor([1]))
    assert loss.item() == pytest.approx(2e4)
