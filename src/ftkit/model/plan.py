"""What a run's model will be, in shapes and names, before any weight is read.

In: the recipe's sections. Out: a `ModelPlan`, enough to build the net (`build_net`), to fill it (`load_net`) and to
count its bytes (`planning/`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from peft import LoraConfig
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.quantizers.quantizers_utils import should_convert_module

from ftkit.model.adapter import lora_config, saved_whole
from ftkit.model.config import read_stored_config
from ftkit.model.plain import find_blocks, plain_net
from ftkit.model.quantizer import Quantizer, choose_quantizer
from ftkit.model.targets import adapted_modules
from ftkit.model.trained_rows import is_named

if TYPE_CHECKING:
    from ftkit.recipe.section.adapter import AdapterSection
    from ftkit.recipe.section.model import ModelSection
    from ftkit.recipe.section.quantization import QatSection, QuantizationSection


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """One parameter (or persistent buffer) of transformers' plain net.

    Args:
        name: transformers' own name.
        quantized: it is stored by the plan's quantizer instead of in floats.
        adapted: its module gets LoRA.
        stored_rows: length of the first axis in the checkpoint, where the vocabulary grows.
        first_rows: rows of the vocabulary that start anew: those that are made, and spare ones that a new token takes.
    """

    name: str
    shape: tuple[int, ...]
    quantized: bool = False
    adapted: bool = False
    stored_rows: int | None = None
    first_rows: tuple[int, ...] = ()

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape in the checkpoint."""
        return self.shape if self.stored_rows is None else (self.stored_rows, *self.shape[1:])

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_experts(self) -> bool:
        """Experts are one three-dimensional parameter in transformers 5; no linear quantizer reaches them."""
        return len(self.shape) == 3


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One decoder block: its module's name and class, and its parameters by their whole names."""

    name: str
    kind: str
    parameters: tuple[ParameterPlan, ...]


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """What a recipe adds to the tokenizer.

    Args:
        known: length of the tokenizer before; None when nothing is known of it.
        added: new id -> the known ids that describe it; none for no description.
        renamed: ids whose text the recipe replaces.
    """

    known: int | None = None
    added: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    renamed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The model of a run, before its weights.

    Args:
        source: folder or hub id of the weights; `base_model` is the recipe's own words for it.
        config: transformers' configuration, overrides applied, vocabulary as it will be. Not to be changed.
        blocks: in order of execution.
        root: what no block holds: embeddings, last norm, head.
        tied: parameter name -> the one it is the same tensor as.
        adapter: PEFT's configuration; None for full fine-tuning.
        loftq: the adapter starts at the rounding error of its base (`model/loftq.py`).
        qat: how linears round in the forward pass (`model/qat.py`); None for not at all.
        known_tokens: rows of the vocabulary that had a token before the recipe added some; None for all.
        descriptions: new token -> the known tokens that describe it; its first value is their mean.
    """

    base_model: str
    source: str
    revision: str | None
    trust_remote_code: bool
    config: PretrainedConfig
    net_class: str
    blocks: tuple[BlockPlan, ...]
    root: tuple[ParameterPlan, ...]
    tied: tuple[tuple[str, str], ...]
    quantizer: Quantizer | None = None
    adapter: LoraConfig | None = None
    adapted: tuple[str, ...] = ()
    adapter_folder: str | None = None
    qat: QatSection | None = None
    known_tokens: int | None = None
    descriptions: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    loftq: bool = False

    def parameters(self) -> Iterator[ParameterPlan]:
        """Every parameter, blocks first."""
        for block in self.blocks:
            yield from block.parameters
        yield from self.root

    @property
    def num_parameters(self) -> int:
        """Parameters of the plain net, tied ones once, adapters not counted."""
        return sum(parameter.numel for parameter in self.parameters())

    @property
    def num_unquantized_experts(self) -> int:
        """Parameters of experts that a quantized plan leaves in floats; the caller lists them."""
        return sum(p.numel for p in self.parameters() if p.is_experts) if self.quantizer else 0


def plan_model(
    model: ModelSection,
    quantization: QuantizationSection,
    adapter: AdapterSection,
    *,
    tokenizer_length: int | None = None,
    vocabulary_multiple: int = 1,
    tokens: TokenPlan = TokenPlan(),
) -> ModelPlan:
    """Plan the recipe's model.

    Args:
        model: which model, with what changes to its configuration.
        quantization: how its frozen linears are stored.
        adapter: LoRA's settings; `adapter.adapter` None means full fine-tuning.
        tokenizer_length: the vocabulary grows to it when it is longer than the embedding, and never shrinks.
        vocabulary_multiple: a grown vocabulary is rounded up to a multiple of this (resize_token_embeddings_to_32x).
        tokens: what the recipe adds to the tokenizer.

    Raises:
        ModelError: see `read_config` and `lora_config`.
    """
    config, source, stored = read_stored_config(model)
    quantizer = choose_quantizer(quantization, adapter, stored)
    stored_vocabulary = config.vocab_size
    if tokenizer_length is not None and tokenizer_length > stored_vocabulary:
        config.vocab_size = math.ceil(tokenizer_length / vocabulary_multiple) * vocabulary_multiple
    net = plain_net(config, dtype=torch.float32, trust_remote_code=model.trust_remote_code)
    blocks = find_blocks(net)
    made = range(stored_vocabulary, config.vocab_size)
    rows = sorted({*tokens.added, *tokens.renamed, *made})
    lora = None
    if adapter.adapter:
        lora = lora_config(adapter, net, blocks, base_model=model.base_model, new_rows=rows)
    adapted = adapted_modules(lora, net) if lora else ()
    described = {p.name: p for p in describe(net, blocks, adapted, quantizer)}
    for name in vocabulary_tables(net) & described.keys():
        first = {*made, *(tokens.added if is_trained(name.rpartition(".")[0], lora) else ())}
        described[name] = replace(
            described[name], stored_rows=stored_vocabulary if made else None, first_rows=tuple(sorted(first))
        )
    block_plans = tuple(block_plan(name, block, described) for name, block in blocks.items())
    in_blocks = {p.name for block in block_plans for p in block.parameters}
    return ModelPlan(
        base_model=model.base_model,
        source=source,
        revision=model.revision_of_model,
        trust_remote_code=model.trust_remote_code,
        config=config,
        net_class=type(net).__name__,
        blocks=block_plans,
        root=tuple(p for p in described.values() if p.name not in in_blocks),
        tied=tuple(net.all_tied_weights_keys.items()),
        quantizer=quantizer,
        adapter=lora,
        adapted=adapted,
        adapter_folder=adapter.lora_model_dir if lora else None,
        qat=quantization.qat,
        known_tokens=tokens.known,
        descriptions=tokens.added,
        loftq=bool(lora and adapter.loftq_bits),
    )


def is_trained(table: str, lora: LoraConfig | None) -> bool:
    """Whether the result of a run holds rows of `table`: a spare row may start anew only if it does."""
    if lora is None or saved_whole(table, lora):
        return True
    return any(is_named(table, key) for key in lora.trainable_token_indices or ())


def frozen_tables(plan: ModelPlan) -> list[str]:
    """Tables with rows for new tokens that no part of the adapter holds: they have to go into its file whole."""
    return [
        p.name
        for p in plan.root
        if p.stored_rows is not None and not is_trained(p.name.rpartition(".")[0], plan.adapter)
    ]


def describe(
    net: PreTrainedModel, blocks: dict[str, nn.Module], adapted: tuple[str, ...], quantizer: Quantizer | None
) -> Iterator[ParameterPlan]:
    """Every entry of the net's state, tied ones once, with what becomes of it."""
    inside = tuple(f"{name}." for name in blocks)
    tied = set(net.all_tied_weights_keys)
    for name, tensor in net.state_dict().items():
        module_name, _, attribute = name.rpartition(".")
        is_linear = type(net.get_submodule(module_name)) is nn.Linear and attribute == "weight"
        if name not in tied:
            yield ParameterPlan(
                name,
                tuple(tensor.shape),
                quantized=quantizer is not None
                and is_linear
                and name.startswith(inside)
                and should_convert_module(module_name, list(quantizer.skipped)),
                adapted=module_name in adapted,
            )


def vocabulary_tables(net: PreTrainedModel) -> set[str]:
    """Names of the parameters with one row a token: the embedding's, the head's weight and bias."""
    ends = [
        module
        for module in (net.get_input_embeddings(), net.get_output_embeddings())  # type: ignore[no-untyped-call]
        if module is not None
    ]
    names = {id(module): name for name, module in net.named_modules()}
    return {f"{names[id(module)]}.{attribute}" for module in ends for attribute, _ in module.named_parameters()}


def block_plan(name: str, block: nn.Module, described: dict[str, ParameterPlan]) -> BlockPlan:
    """The plan of one block out of the net's."""
    parameters = tuple(p for p in described.values() if p.name.startswith(f"{name}."))
    return BlockPlan(name, type(block).__name__, parameters)
