"""The three names of a parameter, and how to go from one to another.

transformers   model.layers.0.self_attn.q_proj.weight
in the net     model.layers.0.self_attn.q_proj.base_layer.weight      (and .lora_A.default.weight)
in PEFT files  base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight

Trained rows of a table are `embed_tokens.trainable_tokens_delta` in the net; PEFT's files have `token_adapter` between.
"""

from __future__ import annotations

from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import ModulesToSaveWrapper
from torch import nn

from ftkit.model.trained_rows import DELTA, TrainedRows

ADAPTER = "default"  # PEFT's own name for the only adapter
PEFT_PREFIX = "base_model.model."


def owner(net: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that holds the parameter transformers calls `name`, and the attribute there.

    Looks through PEFT's wrappers: a targeted linear is its `base_layer`, a saved module its `original_module`.
    """
    *path, attribute = name.split(".")
    module = net
    for step in path:
        module = unwrapped(module.get_submodule(step))
    return module, attribute


def unwrapped(module: nn.Module) -> nn.Module:
    """The module of transformers inside PEFT's wrappers."""
    while isinstance(module, BaseTunerLayer | ModulesToSaveWrapper | TrainedRows):
        module = module.original_module if isinstance(module, ModulesToSaveWrapper) else module.base_layer
    return module


def is_adapter(name: str) -> bool:
    """Whether a parameter of the net belongs to the adapter (LoRA, a copy of a saved module, or rows of new tokens)."""
    parts = name.split(".")
    return parts[-1] == DELTA or (
        ADAPTER in parts and any(part.startswith("lora_") or part == "modules_to_save" for part in parts)
    )


def peft_name(name: str) -> str:
    """Return the name in PEFT's files of the adapter parameter that the net calls `name`."""
    assert is_adapter(name)
    if name.endswith(f".{DELTA}"):
        return f"{PEFT_PREFIX}{name.removesuffix(DELTA)}token_adapter.{DELTA}"
    parts = [part for part in name.split(".") if part not in (ADAPTER, "modules_to_save")]
    if parts[-2] == "lora_magnitude_vector":
        parts.pop()  # PEFT's files have DoRA's vector without the `weight` that its nets have
    return PEFT_PREFIX + ".".join(parts)


def plain_name(name: str) -> str:
    """Return transformers' own name of the base parameter that the net calls `name`."""
    assert not is_adapter(name)
    return ".".join(part for part in name.split(".") if part not in ("base_layer", "original_module"))


def adapter_files(net: nn.Module) -> dict[str, str]:
    """Return what adapter_model.safetensors holds: PEFT's name -> the net's name of the parameter.

    A trained copy that two modules share (tied embedding and head) is one parameter and goes into the file under both
    names, as PEFT expects; rows of new tokens that both share go into it once, as PEFT expects too.
    """
    first: dict[int, str] = {}
    files = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        if is_adapter(name) and not (name.endswith(DELTA) and id(parameter) in first):
            files[peft_name(name)] = first.setdefault(id(parameter), name)
    return files
