"""Supervised fine-tuning: the negative log likelihood of the target tokens, as a sum.

A sum, not a mean: the loop divides by the target tokens of the whole global step, so that no micro-batch and no rank
weighs more than its tokens do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ftkit.data.values import IGNORED, Batch
from ftkit.objective.cross_entropy import cross_entropy_sum

Weigh = Callable[[Tensor], Tensor]  # logits (R, V) -> factor (R,) of each target's loss


def sft_loss(
    net: nn.Module, batch: Batch, *, device: torch.device | None = None, weigh: Weigh | None = None
) -> tuple[Tensor, int]:
    """Return the summed loss (float32 scalar) and the number of target tokens of one micro-batch.

    The head computes logits only where a target follows. A batch without targets still runs through the whole net and
    gives a zero that hangs on the graph: every rank must take part in every collective of the backward pass.

    In training mode a mixture-of-experts net that returns a router loss (`output_router_logits: true`) has it added,
    times its coefficient and the number of target tokens: the step's loss then holds its token-weighted mean.

    Args:
        net: what `backend.finish` returned; called once.
        batch: on the CPU, where the rows to keep are found without waiting for a device.
        device: where the net is; None for where the batch is.
        weigh: makes some targets count more than others; the number of target tokens stays what it is.
    """
    rows = target_rows(batch.labels)
    targets = batch.labels[0, rows + 1]
    outputs = run(net, batch, rows if len(rows) else rows.new_zeros(1), device or batch.labels.device)
    logits = outputs.logits[0, : len(rows)]  # (1, R, V) -> (R, V)
    weights = None if weigh is None else weigh(logits)
    loss = cross_entropy_sum(logits, targets.to(logits.device, non_blocking=True), weights)
    router_loss = getattr(outputs, "aux_loss", None)
    if net.training and isinstance(router_loss, Tensor):
        loss = loss + router_coefficient(net) * len(rows) * router_loss.to(loss.device).float()
    return loss, len(rows)


def target_rows(labels: Tensor) -> Tensor:
    """Positions t of labels (1, T) whose next token is a target, int64."""
    return (labels[0, 1:] != IGNORED).nonzero()[:, 0]


def run(net: nn.Module, batch: Batch, rows: Tensor, device: torch.device) -> Any:
    """Call the net as ftkit's attention wants to be told; its output has (1, R, V) logits at `rows`."""
    borders = batch.cu_seqlens.to(device, non_blocking=True)
    return net(
        input_ids=batch.input_ids.to(device, non_blocking=True),
        position_ids=batch.position_ids.to(device, non_blocking=True),
        use_cache=False,
        logits_to_keep=rows.to(device, non_blocking=True),
        cu_seq_lens_q=borders,
        cu_seq_lens_k=borders,
        max_length_q=batch.max_seqlen,
        max_length_k=batch.max_seqlen,
    )


def router_coefficient(net: nn.Module) -> float:
    """The weight of the router's load balancing loss, from the model's configuration (Switch Transformer, eq. 4)."""
    config = getattr(net, "config", None)
    return float(getattr(config, "router_aux_loss_coef", 0.0))
