"""What is logged, evaluated and saved when, and what ends a run early."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from standin import Run, documents, make_run, section, tiny_llama
from torch.nn.functional import cross_entropy

from ftkit.recipe.section.evaluation import EvaluationSection
from ftkit.recipe.section.saving import SavingSection
from ftkit.recipe.section.training import TrainingSection
from ftkit.save.state import TrainerState
from ftkit.train.cadence import every
from ftkit.train.events import Ended, Evaluated, Logged, Saved, Started, Warned
from ftkit.train.options import LoopOptions, loop_options


class Shelf:
    """A checkpoint store that notes when it was called."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def save(self, state: TrainerState) -> Path:
        self.steps.append(state.step)
        return Path(f"checkpoint-{state.step}")

    def resume(self, folder: Path) -> TrainerState:
        return TrainerState(step=int(folder.name.partition("-")[2]))


def run_with(options: LoopOptions, shelf: Shelf | None = None, *, lr: float = 1e-2, steps: int = 7) -> Run:
    return make_run(
        tiny_llama(),
        documents(8),
        evaluation=documents(5, seed=9),
        options=options,
        optimization=section(learning_rate=lr, optimizer="sgd", lr_scheduler="constant"),
        checkpoints=shelf and (lambda backend, net: shelf),
        micro_batch_size=2,
        max_steps=steps,
    )


def test_events_come_in_order() -> None:
    options = LoopOptions(log_at=every(2), evaluate_at=every(3), save_at=every(4), evaluate_on_start=True)
    run = run_with(options, Shelf())
    run.trainer.run()
    order = [(type(event).__name__, getattr(event, "step", 0)) for event in run.heard.events]
    assert order == [
        (Started.__name__, 0),
        (Evaluated.__name__, 0),
        (Logged.__name__, 2),
        (Evaluated.__name__, 3),
        (Logged.__name__, 4),
        (Saved.__name__, 4),
        (Logged.__name__, 6),
        (Evaluated.__name__, 6),
        (Logged.__name__, 7),
        (Evaluated.__name__, 7),
        (Saved.__name__, 7),
        (Ended.__name__, 7),
    ]


def test_a_resumed_run_goes_straight_to_its_next_step() -> None:
    options = LoopOptions(evaluate_at=every(2), save_at=every(2), evaluate_on_start=True)
    run = run_with(options, Shelf(), steps=3)
    run.trainer.run(resume=Path("checkpoint-2"))
    assert [(type(event), getattr(event, "step", 2)) for event in run.heard.events][:2] == [(Started, 2), (Logged, 3)]


def test_a_logged_window_is_the_mean_over_its_tokens() -> None:
    each, pairs = run_with(LoopOptions(), steps=4), run_with(LoopOptions(log_at=every(2)), steps=4)
    each.trainer.run()
    pairs.trainer.run()
    a, b, c, d = each.heard.logged
    for pair, (first, second) in zip(pairs.heard.logged, [(a, b), (c, d)], strict=True):
        tokens = first.target_tokens + second.target_tokens
        assert pair.target_tokens == tokens
        mean = (first.loss * first.target_tokens + second.loss * second.target_tokens) / tokens
        assert pair.loss == pytest.approx(mean, rel=1e-12)
        assert pair.grad_norm == second.grad_norm


def test_evaluation_is_the_mean_over_all_target_tokens_of_the_set() -> None:
    run = run_with(LoopOptions(evaluate_on_start=True), steps=1)
    total = tokens = 0.0
    for example in documents(5, seed=9):
        ids, labels = (torch.from_numpy(a.astype("int64")) for a in (example.input_ids, example.labels))
        with torch.no_grad():
            logits = run.net(input_ids=ids[None], use_cache=False).logits[0]
        total += cross_entropy(logits[:-1], labels[1:], reduction="sum").item()
        tokens += int((labels[1:] != -100).sum())
    run.trainer.run()
    first = run.heard.evaluated[0]
    assert (first.step, first.eval_target_tokens) == (0, tokens)
    assert first.eval_loss == pytest.approx(total / tokens, rel=1e-6)
    assert run.net.training


def test_evaluating_does_not_change_training() -> None:
    without = run_with(LoopOptions())
    often = run_with(LoopOptions(evaluate_at=every(1), evaluate_on_start=True))
    without.trainer.run()
    often.trainer.run()
    assert [e.loss for e in often.heard.logged] == [e.loss for e in without.heard.logged]


def test_the_watchdog_ends_a_run_after_bad_losses_in_a_row() -> None:
    shelf = Shelf()
    run = run_with(LoopOptions(watchdog_threshold=1.0, watchdog_patience=3), shelf)
    outcome = run.trainer.run()
    assert outcome.steps == 3
    assert outcome.reason == "loss watchdog: 3 logged losses in a row above loss_watchdog_threshold 1"
    assert shelf.steps == [3]


def test_early_stopping_ends_a_run_that_no_longer_gains() -> None:
    run = run_with(LoopOptions(evaluate_at=every(1), stop_patience=2), lr=0.0, steps=9)
    outcome = run.trainer.run()
    assert outcome.reason == "early stopping: 2 evaluations without a lower loss"
    assert outcome.steps == 3


def test_the_step_that_ends_a_run_early_is_logged_evaluated_and_saved() -> None:
    stopped = run_with(LoopOptions(log_at=every(5), evaluate_at=every(1), stop_patience=2), Shelf(), lr=0.0, steps=9)
    stopped.trainer.run()
    watched = run_with(LoopOptions(evaluate_at=every(9), watchdog_threshold=1.0, watchdog_patience=3), Shelf())
    watched.trainer.run()
    for run in (stopped, watched):
        kinds = [type(event) for event in run.heard.events if getattr(event, "step", 0) == 3]
        assert {Logged, Evaluated, Saved} < set(kinds)
        assert len(kinds) == 4  # and the end
    assert run.heard.events[-1].reason.startswith("loss watchdog: ")  # type: ignore[union-attr]


def test_a_step_without_targets_is_skipped_with_a_warning() -> None:
    run = make_run(tiny_llama(), documents(3, trained=False))
    outcome = run.trainer.run()
    assert [e.step for e in run.heard.events if isinstance(e, Warned)] == [1, 2, 3]
    assert outcome.steps == 3
    assert not run.trainer.optimizer.state


def test_options_come_from_the_recipes_sections() -> None:
    class Lengths:
        num_steps, steps_per_epoch = 20, 10

    training = TrainingSection(logging_steps=5, seed=3)
    evaluation = EvaluationSection(evals_per_epoch=2, early_stopping_patience=4, loss_watchdog_threshold=5.0)
    options = loop_options(training, evaluation, SavingSection(save_steps=0.5), Lengths(), autocast=torch.bfloat16)
    steps = range(21)
    assert [s for s in steps if options.log_at(s)] == [5, 10, 15, 20]
    assert [s for s in steps if options.evaluate_at(s)] == [5, 10, 15, 20]
    assert [s for s in steps if options.save_at(s)] == [10, 20]
    assert (options.seed, options.stop_patience, options.watchdog_threshold) == (3, 4, 5.0)
    assert options.watchdog_patience == 3
    assert options.autocast is torch.bfloat16


def test_saving_the_best_follows_the_evaluations() -> None:
    shelf = Shelf()
    run = run_with(LoopOptions(evaluate_at=every(2), save_best=True), shelf, lr=0.05)
    run.trainer.run()
    losses = [(e.step, e.eval_loss) for e in run.heard.evaluated]
    best = [step for i, (step, loss) in enumerate(losses) if all(loss < earlier for _, earlier in losses[:i])]
    assert shelf.steps == sorted({*best, 7})
