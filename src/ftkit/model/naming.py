"""The three names of a parameter, and how to go from one to another.

transformers   model.layers.0.self_attn.q_proj.weight
in the net     model.layers.0.self_attn.q_proj.base_layer.weight      (and .lora_A.default.weight)
in PEFT files  base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight
"""

from __future__ import annotations

from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import ModulesToSaveWrapper
from torch import nn

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
    while isinstance(module, BaseTunerLayer | ModulesToSaveWrapper):
        module = module.base_layer if isinstance(module, BaseTunerLayer) else module.original_module
    return module


def is_adapter(name: str) -> bool:
    """Whether a parameter of the net belongs to the adapter (LoRA, or a copy of a saved module)."""
    parts = name.split(".")
    return ADAPTER in parts and any(part.startswith("lora_") or part == "modules_to_save" for part in parts)


def peft_name(name: str) -> str:
    """Return the name in PEFT's files of the adapter parameter that the net calls `name`."""
    assert is_adapter(name)
    parts = [part for part in name.split(".") if part not in (ADAPTER, "modules_to_save")]
    return PEFT_PREFIX + ".".join(parts)


def plain_name(name: str) -> str:
    """Return transformers' own name of the base parameter that the net calls `name`."""
    assert not is_adapter(name)
    return ".".join(part for part in name.split(".") if part not in ("base_layer", "original_module"))
