"""The base of a merge, one parameter at a time: as published, or as the quantized run computed with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ftkit.errors import ModelError
from ftkit.model.build import build_net
from ftkit.model.checkpoint_files import fingerprint, open_weights
from ftkit.model.config import read_config
from ftkit.model.origins import find_origins
from ftkit.model.plain import plain_net
from ftkit.model.plan import plan_model, vocabulary_tables
from ftkit.model.quantized import QuantizedLinear
from ftkit.recipe.section.adapter import AdapterSection
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.quantization import QuantizationSection

Patch = Callable[[str, Tensor], Tensor]


class Base:
    """The opened base.

    Args:
        model: which, from the recipe.
        quantization: of the run, for a base as it was trained on; None for the published weights.
        expected: what `fingerprint` said when the adapter was trained; None to take any.

    Raises:
        ModelError: no such base, not the one that was trained on, or files that do not fit its configuration.
    """

    def __init__(
        self, model: ModelSection, quantization: QuantizationSection | None = None, expected: str | None = None
    ) -> None:
        self.model = model
        self.config, self.source = read_config(model)
        refuse_other(self.source, model.revision_of_model, expected)
        self.net = plain_net(self.config, dtype=torch.float32, trust_remote_code=model.trust_remote_code)
        self.tied: dict[str, str] = dict(self.net.all_tied_weights_keys)
        self.tables = vocabulary_tables(self.net)
        self.weights = open_weights(self.source, model.revision_of_model)
        self.state = self.net.state_dict()
        shapes = {name: tuple(value.shape) for name, value in self.state.items() if name not in self.tied}
        self.origins = find_origins(self.net, self.weights, shapes, self.tied)
        self.quantizer, self.quantized = None, None
        self.is_packed = bool(self.weights.packed)  # quantized in its files; reading them gives what was trained on
        if quantization is not None and not self.is_packed:
            self.quantizer, self.quantized = quantized_net(model, quantization)

    def __contains__(self, name: str) -> bool:
        """Whether the parameter has a value: in the files, or computed by its model (a buffer)."""
        name = self.tied.get(name, name)
        return name in self.origins or not self.state[name].is_meta

    def read(self, name: str, patch: Patch | None = None) -> Tensor:
        """The parameter that transformers calls `name`, on the CPU; its memory may be the file's own.

        Args:
            patch: is given every tensor of the files, with its name there, before parameters are made of them.
        """
        name = self.tied.get(name, name)
        if name not in self.origins:
            buffer: Tensor = self.state[name]
            return buffer
        origin, made = self.origins[name]
        read = self.weights.read if patch is None else lambda file: patch(file, self.weights.read(file))
        value = origin.make(self.net, read)[made]
        module = None if self.quantized is None else self.quantized.get_submodule(name.rpartition(".")[0])
        if isinstance(module, QuantizedLinear) and name.endswith(".weight"):
            stored = module.encode(value)
            return module.decode([stored[part] for part in module.stored_names], torch.float32)
        return value

    @property
    def kind(self) -> str:
        """Which values of the base are merged into, in words."""
        if self.is_packed:
            kinds = sorted({packed.kind for packed in self.weights.packed.values()})
            return f"{', '.join(kinds)} as published, dequantized"
        return f"{self.quantizer}, dequantized" if self.quantizer else "published"

    @property
    def dtype(self) -> torch.dtype:
        """Of the floats in its files: the most frequent, by number of tensors."""
        dtypes = [self.weights.read(name).dtype for name in self.weights.names()]
        floats = [dtype for dtype in dtypes if dtype.is_floating_point]
        return max(set(floats), key=floats.count)


def refuse_other(source: str, revision: str | None, expected: str | None) -> None:
    """Raise for weights that are not those the adapter was trained on."""
    if expected is None:
        return
    found = fingerprint(source, revision)
    if found != expected:
        raise ModelError(
            f"these are not the weights the adapter was trained on, got {found}, expected {expected}",
            where=f"base_model: {source}",
            help="give the base of the training with --base; --any-base merges into this one all the same",
        )


def quantized_net(model: ModelSection, quantization: QuantizationSection) -> tuple[str, PreTrainedModel]:
    """The quantizer's name, and the net of a run with these settings, on meta and without an adapter."""
    if not quantization.is_quantized:
        raise ModelError(
            "the run's base was not quantized, so there is nothing to dequantize",
            where="--faithful",
            help="leave --faithful away, or say how it was quantized: load_in_4bit=true",
        )
    any_adapter = AdapterSection(adapter="qlora", lora_target_linear=True)  # a quantized run has one; it is not built
    plan = plan_model(model, quantization, any_adapter)
    assert plan.quantizer is not None
    return plan.quantizer.name, build_net(replace(plan, adapter=None), dtype=torch.float32)
