"""The loop: step plan -> micro-batches -> loss over the step's target tokens -> backward -> step.

It never asks which backend it has. Everything that depends on chance is a function of (seed, step, rank), everything
that recurs a function of the steps done, so a run resumed at any step goes on as if it had never stopped.

How `run.py` wires it, on any backend:

    module, optimizer = backend.finish(net, fill_root, group_builder(recipe.optimization),
                                       build_optimizer(recipe.optimization, world.device), max_grad_norm)
    plan = StepPlan(packs, ...)
    batches = PlannedBatches(prepared.train, plan, world, pad_to=..., pad_id=...)
    options = loop_options(recipe.training, recipe.evaluation, recipe.saving, batches, autocast=torch.bfloat16 or None)
    trainer = Trainer(module, optimizer, backend, batches, options,
                      schedule=build_schedule(recipe.optimization, plan.num_steps),
                      evaluation=evaluation_source(prepared.evaluation, ...) or None,
                      checkpoints=Checkpoints(output_dir, backend, identity=..., limit=..., extra=...) or None,
                      listeners=[MetricsFile(...), Console(...), LossPlot(...)] if world.is_main else [])
    outcome = trainer.run(resume=checkpoint folder or None)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from ftkit.data.values import Batch
from ftkit.objective.sft import Weigh
from ftkit.parallel.backend import Backend
from ftkit.save.state import TrainerState
from ftkit.train.batches import BatchSource
from ftkit.train.events import Ended, Evaluated, Event, Listener, Logged, Saved, Started, Warned
from ftkit.train.measure import Meter
from ftkit.train.options import LoopOptions
from ftkit.train.step import Stepper


class CheckpointStore(Protocol):
    """Where the loop saves and resumes; `save.checkpoint.Checkpoints` is one."""

    def save(self, state: TrainerState) -> Path:
        """Write a checkpoint; it is whole when this returns."""

    def resume(self, folder: Path) -> TrainerState:
        """Put parameters and optimizer state back and return where the run stood."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Args:
        reason: `done`, or why it ended early.
        seconds: of this process's part of the run.
        first_loss, last_loss: logged by this process; None when it logged nothing.
        first_eval_loss, last_eval_loss: None without an evaluation.
    """

    steps: int
    reason: str
    seconds: float
    first_loss: float | None
    last_loss: float | None
    first_eval_loss: float | None
    last_eval_loss: float | None


@dataclass
class Trainer:
    """One run; the module's docstring shows how it is put together.

    Args:
        module: what `backend.finish` returned.
        schedule: step (from 0) -> factor of the learning rate the optimizer was built with.
        evaluation: returns this rank's evaluation batches, all of them once.
        listeners: given on rank 0 only.
        phase: surrounds what is not training: `evaluation` and `save`.
        weigh: factors of the targets' losses in training.
        before_step: told the number of steps done, at the start and before each step.
    """

    module: nn.Module
    optimizer: Optimizer
    backend: Backend
    batches: BatchSource
    options: LoopOptions
    schedule: Callable[[int], float]
    evaluation: Callable[[], Iterable[Batch]] | None = None
    checkpoints: CheckpointStore | None = None
    listeners: Sequence[Listener] = ()
    phase: Callable[[str], AbstractContextManager[object]] = nullcontext
    weigh: Weigh | None = None
    before_step: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        options, device = self.options, self.backend.world.device
        peaks = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        parts = (self.module, self.optimizer, self.backend, self.schedule)
        self.stepper = Stepper(*parts, peaks, options.seed, options.autocast, self.weigh)
        self.meter = Meter(device, options.flops_per_token, options.peak_flops)
        self.state = TrainerState()
        self.newest: Path | None = None  # the checkpoint that a broken-off run goes on from
        self.grad_norm = 0.0
        self.losses: list[float] = []
        self.eval_losses: list[float] = []

    def run(self, resume: Path | None = None) -> Outcome:
        """Train to the end, from the start or from the checkpoint `resume`."""
        start = time.monotonic()
        if resume is not None:
            assert self.checkpoints is not None
            self.state = self.checkpoints.resume(resume)
            self.newest = resume
        device = self.backend.world.device
        carried = self.state.window_loss if self.backend.world.is_main else 0.0  # saved as the sum over all ranks
        self.window_loss = torch.tensor(carried, dtype=torch.float64, device=device)
        self.tell_steps_done()
        self.announce(Started(self.batches.num_steps, self.state.step, self.batches.steps_per_epoch))
        try:
            self.module.train()
            if self.evaluation is not None and self.options.evaluate_on_start and self.state.step == 0:
                self.evaluate()
            self.meter.start()
            while self.state.step < self.batches.num_steps and not self.state.stopped:
                self.train_step()
                self.after_step()
        finally:
            self.batches.close()
        return self.end(time.monotonic() - start)

    def train_step(self) -> None:
        """One optimizer step; the state counts it when it is done."""
        self.tell_steps_done()
        with self.meter.waiting_for_data():
            work = self.batches.step(self.state.step)
        if work.num_target_tokens:
            loss, self.grad_norm = self.stepper.step(self.state.step, work)
            self.window_loss += loss
            self.state.window_tokens += work.num_target_tokens
        else:
            text = "no document of this step has a target token: the step is skipped"
            self.announce(Warned(self.state.step + 1, text))
        self.meter.tokens += sum(batch.input_ids.numel() for batch in work.micro_batches)
        self.state.step += 1

    def tell_steps_done(self) -> None:
        """Let what depends on the step be as it should."""
        if self.before_step is not None:
            self.before_step(self.state.step)

    def after_step(self) -> None:
        """Log, evaluate and save, where due; the last step, or the one that ends the run, has all three."""
        done, last = self.state.step, self.state.step == self.batches.num_steps
        better = False
        logs = last or self.options.log_at(done)
        if logs:
            self.log()
        if self.evaluation is not None and (last or self.state.stopped or self.options.evaluate_at(done)):
            better = self.evaluate()
        if self.state.stopped and not logs:  # the evaluation ended the run
            self.log()
        due = last or self.state.stopped is not None or self.options.save_at(done)
        if self.checkpoints is not None and self.options.saves and (due or (better and self.options.save_best)):
            self.save()

    def log(self) -> None:
        """Announce the window since the last logged step, and let the watchdog look at its loss."""
        state, tokens = self.state, self.state.window_tokens
        device = self.backend.world.device
        local = torch.stack([self.window_loss, torch.tensor(self.meter.tokens, dtype=torch.float64, device=device)])
        loss_sum, all_tokens = self.backend.reduce(local, "sum").tolist()
        loss = loss_sum / tokens if tokens else math.nan
        speed = all_tokens / self.meter.seconds
        logged = Logged(
            step=state.step,
            epoch=state.step / self.batches.steps_per_epoch,
            loss=loss,
            grad_norm=self.grad_norm,
            learning_rate=self.stepper.learning_rate(state.step - 1),
            target_tokens=tokens,
            tokens_per_second=speed,
            mfu=self.meter.mfu(speed),
            memory_gib=self.meter.memory_gib(),
            data_seconds=self.meter.data_seconds,
        )
        self.window_loss.zero_()
        state.window_tokens = 0
        self.losses.append(loss)
        self.announce(logged)
        self.watch(loss)
        self.meter.start()

    def watch(self, loss: float) -> None:
        """Count logged losses above the watchdog's threshold; enough in a row end the run."""
        threshold = self.options.watchdog_threshold
        if threshold is None:
            return
        self.state.bad_losses = 0 if loss <= threshold else self.state.bad_losses + 1
        if self.state.bad_losses >= self.options.watchdog_patience and not self.state.stopped:
            times = f"{self.state.bad_losses} logged losses in a row"
            self.state.stopped = f"loss watchdog: {times} above loss_watchdog_threshold {threshold:g}"

    def evaluate(self) -> bool:
        """Announce the loss on the evaluation set, let early stopping look at it, return whether it is the best yet."""
        assert self.evaluation is not None
        with self.meter.aside(), self.phase("evaluation"):
            start = time.monotonic()
            loss, tokens = self.stepper.evaluate(self.evaluation())
            seconds = time.monotonic() - start
        step = self.state.step
        self.eval_losses.append(loss)
        self.announce(Evaluated(step, step / self.batches.steps_per_epoch, loss, tokens, seconds))
        state, best = self.state, self.state.best_eval_loss
        if best is None or loss < best:
            state.best_eval_loss, state.evaluations_without_gain = loss, 0
            return True
        state.evaluations_without_gain += 1
        patience = self.options.stop_patience
        if patience is not None and state.evaluations_without_gain >= patience and not state.stopped:
            state.stopped = f"early stopping: {state.evaluations_without_gain} evaluations without a lower loss"
        return False

    def save(self) -> None:
        """Write a checkpoint."""
        assert self.checkpoints is not None
        with self.meter.aside(), self.phase("save"):
            start = time.monotonic()
            self.state.window_loss = float(self.backend.reduce(self.window_loss.clone(), "sum"))
            folder = self.newest = self.checkpoints.save(self.state)
            self.announce(Saved(self.state.step, folder, time.monotonic() - start))

    def end(self, seconds: float) -> Outcome:
        """Announce and return how the run ended."""
        reason = self.state.stopped or "done"
        self.announce(Ended(self.state.step, seconds, reason))
        return Outcome(self.state.step, reason, seconds, *ends(self.losses), *ends(self.eval_losses))

    def announce(self, event: Event) -> None:
        """Tell every listener."""
        for listener in self.listeners:
            listener.on(event)


def ends(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The first and the last of `values`, or neither."""
    return (values[0], values[-1]) if values else (None, None)
