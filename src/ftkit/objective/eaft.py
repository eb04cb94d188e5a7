"""Entropy-adaptive fine-tuning: a target weighs as much as the model is in doubt about it.

A target that the model is sure will *not* come contradicts what it knows, and pulls hardest at its weights; a target
it hesitates over teaches. So each target's loss is multiplied by the entropy of the prediction it is judged by:

    H      = - sum over the k most likely tokens of p log p,  p = softmax over these k logits alone
    loss   = sum over targets of  H ** alpha * -log P(target)

H is in nats, in [0, log k], and takes no gradient. The sum is still divided by the number of target tokens, not by the
sum of the weights. This is what the dialect's recipes were tuned with (axolotl, monkeypatch/loss/eaft.py). The paper
divides H by log k and LLaMA-Factory by 3, which is log 20: a constant factor of the whole loss, so Adam takes the same
steps as long as `max_grad_norm` does not clip.

Source: Diao et al. 2026, "Entropy-Adaptive Fine-Tuning: Resolving Confident Conflicts to Mitigate Forgetting",
arXiv:2601.02151.

Shapes: R rows (target tokens), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ftkit.objective.cross_entropy import chunks


@dataclass(frozen=True, slots=True)
class EntropyWeights:
    """Weights of targets by the entropy of their predictions.

    Args:
        alpha: exponent; 0 weighs every target 1.
        k: most likely tokens that the entropy is taken over; the vocabulary's size where that is smaller.
    """

    alpha: float
    k: int

    @torch.no_grad()
    def __call__(self, logits: Tensor) -> Tensor:
        """Return the weight (R,), float32, of each row of `logits` (R, V)."""
        return torch.cat([self.of_rows(logits[part]) for part in chunks(logits)])

    def of_rows(self, logits: Tensor) -> Tensor:
        """(r, V) -> (r,)."""
        largest = logits.topk(min(self.k, logits.shape[1]), dim=1).values.float()
        log_p = largest.log_softmax(1)  # (r, k)
        entropy = -(log_p.exp() * log_p).sum(1)
        return entropy.clamp_(min=0).pow_(self.alpha)
