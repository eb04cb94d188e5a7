"""transformers' own net without any memory: parameters on meta, buffers real."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ftkit.errors import ModelError
from ftkit.model.attention import NAME, register_attention


def plain_net(config: PretrainedConfig, *, dtype: torch.dtype, trust_remote_code: bool = False) -> PreTrainedModel:
    """Build the net of `config` with every parameter on meta and every buffer (rotary tables) computed.

    The configuration is copied: transformers writes dtype and attention into the one it is given.

    Raises:
        ModelError: the configuration's values make no net.
    """
    register_attention()
    with init_empty_weights(include_buffers=False):
        try:
            net: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                copy.deepcopy(config), dtype=dtype, attn_implementation=NAME, trust_remote_code=trust_remote_code
            )
        except Exception as problem:  # the model's own code over the user's values: anything may come
            raise ModelError(
                f"{config.model_type} cannot be built from this configuration ({type(problem).__name__}: {problem})"
                + suspects(config, problem),
                where="config.json or model_config",
                help="compare with the configuration of a model of this kind that works",
            ) from problem
    return net


def suspects(config: PretrainedConfig, problem: Exception) -> str:
    """The keys whose value a failed look-up names, as `, got KEY VALUE`."""
    if not isinstance(problem, KeyError):
        return ""
    keys = [f"{key} {value}" for key, value in config.to_dict().items() if value == problem.args[0]]
    return f", got {', '.join(keys)}" if keys else ""


def find_blocks(net: nn.Module) -> dict[str, nn.Module]:
    """Return the decoder blocks by name: the longest list of layers that transformers can checkpoint.

    Raises:
        ModelError: the net has no such list.
    """
    lists = list(layer_lists(net))
    if not lists:
        raise ModelError(
            "no list of decoder blocks found", where=type(net).__name__, help="this architecture is not supported"
        )
    name, layers = max(lists, key=lambda item: len(item[1]))
    return {f"{name}.{index}": layer for index, layer in enumerate(layers)}


def layer_lists(net: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """Module lists made of checkpointable layers, else of the classes the net says never to split."""
    whole = set(getattr(net, "_no_split_modules", None) or ())
    for name, module in net.named_modules():
        if (
            isinstance(module, nn.ModuleList)
            and len(module)
            and all(isinstance(layer, GradientCheckpointingLayer) or type(layer).__name__ in whole for layer in module)
        ):
            yield name, module
