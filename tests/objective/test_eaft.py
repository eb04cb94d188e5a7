"""Against the formula written out with torch's own pieces, one target at a time."""

from __future__ import annotations

import pytest
import torch
from standin import documents, make_run, tiny_llama
from torch.nn.functional import cross_entropy

from ftkit.data.batch import collate
from ftkit.data.store import ExampleStore
from ftkit.objective import cross_entropy as module
from ftkit.objective.eaft import EntropyWeights
from ftkit.objective.sft import sft_loss


def naive_weight(row: torch.Tensor, alpha: float, k: int) -> torch.Tensor:
    """The entropy of the k most likely tokens of one prediction, by torch.distributions."""
    largest = row.detach().double().sort(descending=True).values[:k]
    entropy: torch.Tensor = torch.distributions.Categorical(logits=largest).entropy()
    return entropy**alpha


def naive_loss(net: torch.nn.Module, store: ExampleStore, alpha: float, k: int) -> tuple[torch.Tensor, int]:
    """Every document by itself and every target by itself."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for example in store:
        ids, labels = torch.tensor(example.input_ids.astype("int64")), torch.tensor(example.labels.astype("int64"))
        logits = net(input_ids=ids[None], use_cache=False).logits[0]
        for row, target in zip(logits[:-1], labels[1:], strict=True):
            if target != -100:
                total = total + naive_weight(row, alpha, k) * cross_entropy(row.double(), target)
                count += 1
    return total, count


@pytest.mark.parametrize(("alpha", "k"), [(1.0, 20), (0.5, 3), (2.0, 101), (1.5, 5000)])
def test_a_packed_row_has_the_loss_and_the_gradients_of_the_formula(alpha: float, k: int) -> None:
    store, results = documents(5, seed=1), []
    for ours in (True, False):
        net = tiny_llama()
        batch = collate(store, range(5), pad_to=128, pad_id=0)
        weigh = EntropyWeights(alpha, k)
        loss, tokens = sft_loss(net, batch, weigh=weigh) if ours else naive_loss(net, store, alpha, k)
        loss.backward()
        results.append((loss.detach().double(), tokens, [p.grad for p in net.parameters()]))
    (loss, tokens, gradients), (expected, count, reference) = results
    assert tokens == count
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradients, reference, rtol=1e-4, atol=1e-5)


def test_alpha_zero_is_the_plain_loss() -> None:
    batch, net = collate(documents(3), range(3), pad_to=None, pad_id=0), tiny_llama()
    plain, _ = sft_loss(net, batch)
    weighted, _ = sft_loss(net, batch, weigh=EntropyWeights(0.0, 20))
    assert weighted.item() == plain.item()


def test_a_certain_prediction_weighs_nothing_and_an_even_one_log_k() -> None:
    logits = torch.zeros(2, 50)
    logits[0, 7] = 1e4
    weights = EntropyWeights(1.0, 20)(logits)
    assert weights[0].item() == 0.0
    assert weights[1].item() == pytest.approx(torch.tensor(20.0).log().item())


def test_weights_are_the_same_in_any_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(11, 40, generator=torch.Generator().manual_seed(1)) * 3
    whole = EntropyWeights(1.3, 6)(logits)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 80)
    assert torch.equal(EntropyWeights(1.3, 6)(logits), whole)


def test_rows_of_bfloat16_are_weighed_in_float32() -> None:
    logits = (torch.randn(9, 40, generator=torch.Generator().manual_seed(2)) * 3).bfloat16()
    expected = torch.stack([naive_weight(row.float(), 1.0, 6) for row in logits])
    torch.testing.assert_close(EntropyWeights(1.0, 6)(logits).double(), expected, rtol=1e-5, atol=1e-6)


def test_without_targets_there_is_a_zero_on_the_graph() -> None:
    net = tiny_llama()
    batch = collate(documents(2, trained=False), [0, 1], pad_to=None, pad_id=0)
    loss, tokens = sft_loss(net, batch, weigh=EntropyWeights(1.0, 20))
    loss.backward()
    assert (loss.item(), tokens) == (0.0, 0)
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())


def test_the_step_divides_by_its_target_tokens_and_evaluation_is_plain() -> None:
    store, net = documents(8, seed=3), tiny_llama()
    with torch.no_grad():
        weighted, tokens = naive_loss(net, store, 1.0, 20)
        plain, _ = naive_loss(net, store, 0.0, 20)
    weigh = EntropyWeights(1.0, 20)
    run = make_run(net, store, evaluation=store, weigh=weigh, micro_batch_size=2, accumulation=4)
    assert run.trainer.evaluation is not None
    loss, measured = run.trainer.stepper.evaluate(run.trainer.evaluation())
    assert (loss, measured) == (pytest.approx(plain.item() / tokens, rel=1e-5), tokens)
    run.trainer.run()
    (line,) = run.heard.logged
    assert line.target_tokens == tokens
    assert line.loss == pytest.approx(weighted.item() / tokens, rel=1e-5)
