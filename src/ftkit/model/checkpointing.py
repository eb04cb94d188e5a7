"""Activation checkpointing: keep a block's input, run the block again in backward.

The switch of transformers does it for every architecture (its layers are `GradientCheckpointingLayer`s), lets the
embedding's output ask for a gradient so that frozen ones pass it on, and can skip layers or keep inputs on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

if TYPE_CHECKING:
    from ftkit.recipe.section.training import TrainingSection

SELECTIVE_EVERY = 2  # of so many blocks one recomputes: half the memory for half the time


def checkpointing_of(training: TrainingSection) -> dict[str, Any]:
    """What the recipe asks for, as arguments of `checkpoint_blocks`."""
    kind, reentrant = training.gradient_checkpointing, training.reentrant_checkpointing
    if reentrant is None:
        reentrant = bool(training.gradient_checkpointing_kwargs.get("use_reentrant", False))
    return {
        "enabled": bool(kind),
        "reentrant": reentrant,
        "every": SELECTIVE_EVERY if kind == "selective" else 1,
        "offload": kind == "offload" or bool(training.activation_offloading),
    }


def checkpoint_blocks(
    net: PreTrainedModel, *, enabled: bool, reentrant: bool = False, every: int = 1, offload: bool = False
) -> None:
    """Turn activation checkpointing of the blocks on or off.

    Args:
        net: from `build_net`.
        enabled: off keeps all activations.
        reentrant: the older form of torch; nothing in ftkit needs it, stage 3 of ZeRO neither.
        every: checkpoint one block in `every`; the others keep their activations.
        offload: keep the blocks' inputs in host memory.
    """
    if enabled:
        net.activation_checkpointing_enable({"use_reentrant": reentrant}, every_n_layers=every, offload=offload)
    else:
        net.activation_checkpointing_disable()  # type: ignore[no-untyped-call]
