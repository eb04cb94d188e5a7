"""One optimizer step and one evaluation: the arithmetic of the loop, without its bookkeeping."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ftkit.data.values import Batch
from ftkit.errors import BackendError
from ftkit.objective.sft import Weigh, sft_loss
from ftkit.parallel.backend import Backend
from ftkit.train.batches import StepBatches


@dataclass(frozen=True)
class Stepper:
    """Computes with a placed module.

    Args:
        schedule: step (from 0) -> factor of the learning rates in `peaks`.
        peaks: the learning rate each parameter group was built with.
        autocast: dtype of products, None for the parameters' own.
        weigh: factors of the targets' losses in training; evaluation knows the plain loss alone.
    """

    module: nn.Module
    optimizer: Optimizer
    backend: Backend
    schedule: Callable[[int], float]
    peaks: tuple[float, ...]
    seed: int
    autocast: torch.dtype | None
    weigh: Weigh | None = None

    def step(self, number: int, work: StepBatches) -> tuple[Tensor, float]:
        """Take step `number` (from 0); return this rank's summed loss (float64, on its device) and the gradient norm.

        Raises:
            BackendError: the loss or the gradient norm is not finite; no parameter has been changed.
        """
        torch.manual_seed(step_seed(self.seed, number, self.backend.world.rank))
        self.set_learning_rates(number)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for index, batch in enumerate(work.micro_batches):
            last = index == len(work.micro_batches) - 1
            with self.backend.micro_batch(last=last):
                with self.precision():
                    loss, _ = sft_loss(self.module, batch, device=self.device, weigh=self.weigh)
                total += loss.detach()
                self.backend.backward(loss / work.num_target_tokens, last=last)
        try:
            return total, self.backend.step()
        except BackendError as stop:
            where = f"step {number + 1}, rank {self.backend.world.rank}"
            raise BackendError(stop.what, where=where, help=stop.help) from stop

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> tuple[float, int]:
        """Return the mean loss over all target tokens of all ranks' `batches`, and their number."""
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # loss, target tokens
        self.module.eval()
        for batch in batches:
            with self.precision():
                loss, num_targets = sft_loss(self.module, batch, device=self.device)
            sums[0] += loss
            sums[1] += num_targets
        self.module.train()
        loss_sum, tokens = self.backend.reduce(sums, "sum").tolist()
        return loss_sum / max(tokens, 1), int(tokens)

    def learning_rate(self, number: int) -> float:
        """The first group's learning rate in step `number`."""
        return self.peaks[0] * self.schedule(number)

    def set_learning_rates(self, number: int) -> None:
        """Write this step's rate into the optimizer."""
        factor = self.schedule(number)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self.backend.world.device

    def precision(self) -> AbstractContextManager[object]:
        """The autocast of one forward pass."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of everything random in a rank's step: 63 bits of a hash, so that neighbours have nothing in common."""
    digest = hashlib.sha256(f"{seed}:{step}:{rank}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
