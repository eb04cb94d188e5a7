"""From plan to net: transformers' own class on meta, with quantized linears and the adapter's layers in place."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from ftkit.catalog import QUANTIZERS, load
from ftkit.model import qat
from ftkit.model.adapter import inject
from ftkit.model.freezing import freeze_others
from ftkit.model.naming import is_adapter
from ftkit.model.plain import plain_net
from ftkit.model.plan import ModelPlan


def build_net(
    plan: ModelPlan,
    *,
    dtype: torch.dtype,
    trained: torch.dtype = torch.float32,
    unfrozen: Sequence[str] = (),
) -> PreTrainedModel:
    """Build the net of `plan` without weights; `load_net` fills it.

    The class stays transformers' own (LlamaForCausalLM ...), so parameter names stay transformers' with PEFT's
    `.base_layer` and `.lora_A.default` in them. Trainable are the adapter's parameters, or all without an adapter.

    Args:
        plan: from `plan_model`.
        dtype: of all float parameters but the adapter's; buffers keep what their model gives them.
        trained: of the adapter's parameters.
        unfrozen: patterns of the parameters that are trained without an adapter; none for all.
    """
    net = plain_net(plan.config, dtype=dtype, trust_remote_code=plan.trust_remote_code)
    if plan.quantizer is not None:
        swap_linears(net, plan, dtype)
    if plan.adapter is not None:
        inject(net, copy.deepcopy(plan.adapter), trained=trained)
    if plan.qat is not None:
        qat.prepare(net, plan.qat)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(parameter.is_floating_point() and (plan.adapter is None or is_adapter(name)))
    if unfrozen and plan.adapter is None:
        freeze_others(net, unfrozen, dict(plan.tied))
    return net


def swap_linears(net: nn.Module, plan: ModelPlan, dtype: torch.dtype) -> None:
    """Replace every linear whose weight the plan quantizes."""
    assert plan.quantizer is not None
    kind = load(QUANTIZERS[plan.quantizer.name])
    for parameter in plan.parameters():
        if parameter.quantized:
            path, _, name = parameter.name.rpartition(".")[0].rpartition(".")
            linear = net.get_submodule(f"{path}.{name}")
            assert isinstance(linear, nn.Linear)
            quantized = kind(
                linear.in_features,
                linear.out_features,
                **plan.quantizer.options,
                bias_dtype=None if linear.bias is None else dtype,
            )
            net.get_submodule(path).register_module(name, quantized)
