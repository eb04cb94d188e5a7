from __future__ import annotations

import pytest
import torch
from standin import documents, make_run, section, tiny_llama, weights

from ftkit.errors import BackendError
from ftkit.train.options import LoopOptions


def test_a_run_lowers_the_loss() -> None:
    run = make_run(tiny_llama(), documents(6), micro_batch_size=2, num_epochs=6)
    outcome = run.trainer.run()
    assert outcome.reason == "done"
    assert outcome.steps == 18 == len(run.heard.logged)
    assert outcome.first_loss is not None
    assert outcome.last_loss is not None
    assert outcome.last_loss < 0.8 * outcome.first_loss


@pytest.mark.parametrize("optimizer", ["sgd", "adamw_torch"])
@pytest.mark.parametrize(("micro", "accumulation"), [(1, 8), (2, 4), (4, 2)])
def test_accumulation_follows_the_large_batch(optimizer: str, micro: int, accumulation: int) -> None:
    def trained(micro_batch_size: int, accumulation: int) -> tuple[list[float], dict[str, torch.Tensor]]:
        keys = section(optimizer=optimizer, learning_rate=0.5 if optimizer == "sgd" else 1e-3)
        sizes = {"micro_batch_size": micro_batch_size, "accumulation": accumulation, "max_steps": 4}
        run = make_run(tiny_llama(), documents(20), optimization=keys, **sizes)
        run.trainer.run()
        return [line.loss for line in run.heard.logged], weights(run.net)

    losses, parameters = trained(micro, accumulation)
    reference_losses, reference = trained(8, 1)
    assert losses == pytest.approx(reference_losses, rel=1e-6)
    for name, value in reference.items():
        torch.testing.assert_close(parameters[name], value, rtol=1e-5, atol=1e-6 if optimizer == "sgd" else 2e-5)


def test_the_loss_is_the_mean_over_all_target_tokens_of_the_step() -> None:
    store, net = documents(8, seed=3), tiny_llama()
    total = tokens = 0.0
    for example in store:
        ids, labels = torch.tensor(example.input_ids.astype("int64")), torch.tensor(example.labels.astype("int64"))
        with torch.no_grad():
            logits = net(input_ids=ids[None], use_cache=False).logits[0]
        total += float(torch.nn.functional.cross_entropy(logits[:-1], labels[1:], reduction="sum"))
        tokens += int((labels[1:] != -100).sum())
    run = make_run(net, store, micro_batch_size=2, accumulation=4)
    run.trainer.run()
    (line,) = run.heard.logged
    assert line.loss == pytest.approx(total / tokens, rel=1e-6)
    assert line.target_tokens == tokens


def test_a_non_finite_loss_stops_before_the_optimizer_moves() -> None:
    net = tiny_llama()
    with torch.no_grad():
        net.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    run = make_run(net, documents(4))
    before = weights(net)
    with pytest.raises(
        BackendError, match=r"^step 1, rank 0: the loss is not finite, got nan .*; no parameter has been changed"
    ):
        run.trainer.run()
    for name, value in weights(net).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)


def test_bf16_autocast_stays_near_fp32() -> None:
    losses = []
    for autocast in (None, torch.bfloat16):
        run = make_run(tiny_llama(), documents(8), options=LoopOptions(autocast=autocast), micro_batch_size=4)
        run.trainer.run()
        losses.append([line.loss for line in run.heard.logged])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert losses[1] != losses[0]
