"""An optimizer's state as named tensors, and back: the form in which it is saved.

`{parameter name}/{key}` -> tensor, for any optimizer that keeps a dict of tensors and numbers per parameter: torch's,
transformers' Adafactor, bitsandbytes' with its 8-bit codes, maps and block scales. Numbers become 0-d tensors with
their type in the key (`step:int`), so that nothing is pickled. Learning rates are a function of the step, not state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ftkit.errors import CheckpointError

NUMBERS: Mapping[str, tuple[type, torch.dtype]] = {
    "bool": (bool, torch.bool),
    "int": (int, torch.int64),
    "float": (float, torch.float64),
}


def read_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return the state of `parameters` by name; a parameter that never took a step has none."""
    named = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                kind, tensor = as_tensor(value)
                named[f"{name}/{key}{kind}"] = tensor
    return named


def write_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], named: Mapping[str, Tensor]) -> None:
    """Put `named`, from `read_state`, into `optimizer`, each tensor where its optimizer wants it.

    Raises:
        CheckpointError: the state belongs to parameters that are not trained now.
    """
    states: dict[str, dict[str, Any]] = {}
    for path, tensor in named.items():
        name, _, key = path.rpartition("/")
        key, _, kind = key.partition(":")
        states.setdefault(name, {})[key] = NUMBERS[kind][0](tensor.item()) if kind else tensor
    if unknown := sorted(states.keys() - parameters.keys()):
        raise CheckpointError("the optimizer's state is of another net", where=unknown[0])
    places = {id(p): (g, i) for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])}
    for name, state in states.items():
        parameter = parameters[name]
        group, index = places[id(parameter)]
        allocate(optimizer, parameter, group, index)
        options = optimizer.param_groups[group]
        # torch keeps a step counter on the CPU unless the step is one kernel that reads it
        counters = parameter.device if options.get("fused") or options.get("capturable") else torch.device("cpu")
        fill(optimizer.state[parameter], state, parameter.device, counters)


def as_tensor(value: Any) -> tuple[str, Tensor]:
    """A value of the state as (suffix of its key, tensor)."""
    if isinstance(value, Tensor):
        return "", value.detach()
    kind = type(value).__name__
    if kind not in NUMBERS:
        raise CheckpointError(f"this optimizer keeps a state that cannot be saved, got a {kind}")
    return f":{kind}", torch.tensor(value, dtype=NUMBERS[kind][1])


def allocate(optimizer: Optimizer, parameter: nn.Parameter, group: int, index: int) -> None:
    """Let a bitsandbytes optimizer lay out its state itself: paged memory lives outside torch's allocator."""
    init_state = getattr(optimizer, "init_state", None)
    if init_state is not None and not optimizer.state.get(parameter):
        init_state(optimizer.param_groups[group], parameter, group, index)


def fill(state: dict[str, Any], saved: Mapping[str, Any], device: torch.device, counters: torch.device) -> None:
    """Copy saved values into a state, in place where there is a place, else to `device` (steps to `counters`)."""
    for key, value in saved.items():
        place = state.get(key)
        if not isinstance(value, Tensor):
            state[key] = value
        elif isinstance(place, Tensor) and place.shape == value.shape and place.dtype == value.dtype:
            place.copy_(value)
        else:
            state[key] = value.to(counters if key == "step" and not value.dim() else device, copy=True)
