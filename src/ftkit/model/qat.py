"""Quantization-aware training: linears that round their weights and inputs in the forward pass, through torchao.

The net that `prepare` leaves computes what the model will compute once it is quantized, with ordinary tensors.
Gradients pass through the rounding as if it were not there (straight-through estimation, Bengio et al. 2013), so the
weights drift to where rounding costs least. A rounding linear is an `nn.Linear`: names, shapes and dtypes of parameters
stay transformers', the net loads, shards, saves and exports like any other, and what is exported is the trained model
in 16 or 32 bits. Quantizing that is torchao's `quantize_` with the configuration that `base_config` returns.

As in torchao every linear rounds, the head and the routers of experts included. Integers and 8-bit floats are torchao's
own fake quantizers, by rows, groups or tokens. For the 4-bit floats (nvfp4, mxfp4) torchao 0.18 has linears that need a
Blackwell GPU (nvfp4), refuse autocast and give a bias no gradient; here torchao's tensors do the rounding inside its
general `FakeQuantizedLinear`, on any device, to the same values. An nvfp4 activation has one outer scale for the whole
tensor, so documents packed into one row share it.

Source: torchao documentation, "Quantization-Aware Training"; Jacob et al. 2018, arXiv:1712.05877.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ftkit.errors import ModelError
from ftkit.optional import need

if TYPE_CHECKING:
    from ftkit.recipe.section.quantization import QatSection

INTEGERS = {"int4": torch.int4, "int8": torch.int8}  # type: ignore[attr-defined]
SMALLEST = 1e-12  # stands for the largest absolute value of a tensor of zeros, whose scale would be 0


def prepare(net: nn.Module, section: QatSection) -> None:
    """Put rounding linears (and embeddings, if asked) into `net`, on meta or not; the parameters stay what they are.

    Raises:
        ModelError: torchao is not installed, or a module of `net` cannot be rounded as asked.
    """
    refuse_unfit(net, section)
    activations, weights = section.formats
    if weights in INTEGERS or weights == "fp8":
        ao, qat = torchao("torchao.quantization"), torchao("torchao.quantization.qat")
        ao.quantize_(net, qat.QATConfig(base_config(ao, section), step="prepare"), is_linear)
        if section.quantize_embedding:
            ao.quantize_(net, qat.QATConfig(embedding_config(ao, section), step="prepare"), is_embedding)
    else:
        for name, linear in list(named(net, nn.Linear)):
            net.set_submodule(name, float4_linear(linear, weights, rounds_inputs=activations is not None))
    if section.fake_quant_after_n_steps:
        switch(net, on=False)


def rounding_by_step(net: nn.Module, section: QatSection | None) -> Callable[[int], None] | None:
    """Return what to call with the number of steps done before each step, so that rounding sets in when it should."""
    after = section.fake_quant_after_n_steps if section else None
    return (lambda done: switch(net, on=done >= after)) if after else None


def switch(net: nn.Module, *, on: bool) -> None:
    """Turn all rounding in `net` on or off."""
    base = torchao("torchao.quantization.qat").FakeQuantizerBase
    for module in net.modules():
        if isinstance(module, (base, Float4Rounding)):
            module.enabled = on


def base_config(ao: ModuleType, section: QatSection) -> Any:
    """The configuration of torchao's layer that integers or 8-bit floats imitate; it also quantizes the result."""
    activations, weights = section.formats
    if weights == "fp8":
        return ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow())
    if activations == "fp8":
        return ao.Float8DynamicActivationInt4WeightConfig()
    if activations == "int8":
        return ao.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=INTEGERS[weights], weight_granularity=ao.PerGroup(section.group)
        )
    if weights == "int4":
        return ao.Int4WeightOnlyConfig(group_size=section.group)
    return embedding_config(ao, section)


def embedding_config(ao: ModuleType, section: QatSection) -> Any:
    """The same of a table of embeddings, whose inputs are token ids."""
    return ao.IntxWeightOnlyConfig(weight_dtype=INTEGERS[section.formats[1]], granularity=ao.PerGroup(section.group))


def refuse_unfit(net: nn.Module, section: QatSection) -> None:
    """Raise one error naming every module that cannot be rounded as asked.

    torchao swaps modules for its own, so a subclass would lose what it adds (Gemma's embedding its scale).
    """
    kinds = (nn.Linear, nn.Embedding) if section.quantize_embedding else (nn.Linear,)
    found, group = [], section.group if section.formats[1] != "fp8" else 1
    for name, module in named(net, kinds):
        width = module.weight.shape[1]
        if type(module) not in kinds:
            found.append(f"{name}: it is a {type(module).__name__}, and would lose what that adds")
        elif width % group:
            found.append(f"{name}: its rows of {width} weights are not whole groups of {group}")
    found += [f"{name}: a {type(module).__name__} is no nn.Linear" for name, module in named(net, Conv1D)]
    found += [f"{name}: experts are no linears" for name in stacked(net)]
    if found:
        raise ModelError(
            "these modules cannot be rounded\n  " + "\n  ".join(found),
            where="qat",
            help="choose a group_size that divides all widths, or take qat (or quantize_embedding) out",
        )


def named(net: nn.Module, kinds: Any) -> Iterator[tuple[str, Any]]:
    """Name and module of all modules of `kinds`."""
    return ((name, module) for name, module in net.named_modules() if isinstance(module, kinds))


def stacked(net: nn.Module) -> list[str]:
    """Names of three-dimensional parameters: experts, where they are not the kernels of convolutions."""
    return [
        f"{name}.{attribute}"
        for name, module in net.named_modules()
        for attribute, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3 and not isinstance(module, nn.Conv1d)
    ]


def is_linear(module: nn.Module, name: str) -> bool:
    """For torchao: which modules are swapped."""
    return isinstance(module, nn.Linear)


def is_embedding(module: nn.Module, name: str) -> bool:
    """The same for tables."""
    return isinstance(module, nn.Embedding)


def float4_linear(linear: nn.Linear, format: str, *, rounds_inputs: bool) -> nn.Linear:
    """`linear` as one that rounds to 4-bit floats."""
    rounding: Any = torchao("torchao.quantization.qat").FakeQuantizedLinear.from_linear(linear)
    rounding.weight_fake_quantizer = Float4Rounding(format)
    rounding.activation_fake_quantizer = Float4Rounding(format) if rounds_inputs else None
    return rounding  # type: ignore[no-any-return]


class Float4Rounding(nn.Module):
    """Rounds the last axis of a tensor to `nvfp4` or `mxfp4`; what torchao calls a fake quantizer."""

    def __init__(self, format: str) -> None:
        super().__init__()
        self.round = ROUNDINGS[format]
        self.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        rounded: Tensor = StraightThrough.apply(x, self.round) if self.enabled else x  # type: ignore[no-untyped-call]
        return rounded


class StraightThrough(torch.autograd.Function):
    """Rounds forward, and backward does nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
        """(..., D) -> (..., D)."""
        return rounding(x.reshape(-1, x.shape[-1])).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient as it came."""
        return gradients[0], None


def nvfp4(rows: Tensor) -> Tensor:
    """Round (T, D): e2m1 values, an e4m3 scale for each 16 of them, one float32 scale for all."""
    formats = torchao("torchao.prototype.mx_formats.nvfp4_tensor")
    scale = formats.per_tensor_amax_to_scale(rows.abs().amax().clamp(min=SMALLEST))
    rounded: Tensor = formats.NVFP4Tensor.to_nvfp4(rows, per_tensor_scale=scale).dequantize(rows.dtype)
    return rounded


def mxfp4(rows: Tensor) -> Tensor:
    """Round (T, D): e2m1 values, a power of two for each 32 of them."""
    formats, config = torchao("torchao.prototype.mx_formats.mx_tensor"), torchao("torchao.prototype.mx_formats.config")
    mode = config.ScaleCalculationMode.RCEIL  # what torchao's own MX linears take
    rounded: Tensor = formats.MXTensor.to_mx(
        rows, elem_dtype=torch.float4_e2m1fn_x2, block_size=32, scaling_mode=mode
    ).dequantize(rows.dtype)
    return rounded


ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {"nvfp4": nvfp4, "mxfp4": mxfp4}


def torchao(module: str) -> ModuleType:
    """A part of torchao."""
    return need(module, extra="qat", purpose="qat", error=ModelError)
