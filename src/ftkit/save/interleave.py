"""Stack layers of models on one another, as they are: deeper models out of shallow ones, without a training step.

    layers  0-19, 10-29, 20-39, ...      the way of MegaQwen-120B and Venus-120B
    scale 0 on o_proj and down_proj      a layer that adds nothing yet, to be trained (LLaMA-Pro)

The result is a view on the sources' files (`Stacked`): new name -> source, name there, scale. Its names and shapes are
held against transformers' own net before a byte is read, then tensors stream from file to file, one in memory.

Source: Wu et al. 2024, "LLaMA Pro: Progressive LLaMA with Block Expansion".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ftkit.errors import ModelError
from ftkit.model.checkpoint_files import Weights
from ftkit.model.origins import Origin, find_origins
from ftkit.model.plain import find_blocks, plain_net
from ftkit.recipe.section.slices import ScaleRule, Slice, Stacking
from ftkit.save.interleave_config import Place, refuse_different, stacked_config
from ftkit.save.interleave_files import copy_beside
from ftkit.save.interleave_source import LayerSource
from ftkit.save.stream import TensorShape
from ftkit.save.whole_model import SHARD_BYTES, cast, write_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Taken:
    """Where a tensor of the stack comes from, and what it is multiplied by."""

    source: LayerSource
    name: str
    scale: float = 1.0


class Stacked(Weights):
    """The tensors of a stack, read from its sources when they are asked for."""

    def __init__(self, taken: Mapping[str, Taken]) -> None:
        super().__init__(())
        self.taken = dict(taken)

    def names(self) -> list[str]:
        """All tensors' names, in the order of the layers."""
        return list(self.taken)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.taken[name].source.weights.shape(self.taken[name].name)

    def read(self, name: str) -> Tensor:
        """The tensor in its file's dtype, scaled."""
        taken = self.taken[name]
        value = taken.source.weights.read(taken.name)
        if taken.scale == 1.0:
            return value
        return (value.float() * taken.scale).to(value.dtype) if taken.scale else torch.zeros_like(value)


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of layers, ready to be written.

    Args:
        dtype: of its floats.
        config: its config.json.
        is_checked: transformers knows the architecture, and its net has been held against names and shapes.
    """

    weights: Stacked
    places: tuple[Place, ...]
    dtype: torch.dtype
    config: Mapping[str, Any]
    tokenizer: str
    is_checked: bool


def stack_layers(stacking: Stacking) -> Stack:
    """Work the whole stack out, without reading a tensor.

    Raises:
        ModelError: a model that cannot be read, layers it does not have, or models that do not fit on one another.
    """
    sources = {name: LayerSource(name) for name in dict.fromkeys(one.model for one in stacking.slices)}
    refuse_outside(stacking.slices, sources)
    refuse_different(list(sources.values()))
    places = tuple((sources[one.model], number) for one in stacking.slices for number in range(one.first, one.last))
    first, last = places[0][0], places[-1][0]
    weights = Stacked(layers_of(stacking, sources) | root_of(first, stacking.slices[0].scale))
    dtype = dtype_of(first, stacking.dtype)
    config = stacked_config(places, str(dtype).removeprefix("torch."))
    if first.config is not None:
        net, origins = fit(weights, first, config, stacking.file)
        take_end(weights, last, stacking.slices[-1].scale, net, origins)
        if untie(weights, first, last, net, origins):
            config["tie_word_embeddings"] = False
            fit(weights, first, config, stacking.file)
    elif first is not last:
        raise ModelError(
            f"transformers does not know {first.raw.get('model_type')}, so its end cannot be told from its beginning",
            where=stacking.file,
            help="begin and end with slices of the same model",
        )
    return Stack(weights, places, dtype, config, stacking.tokenizer or first.source, first.config is not None)


def refuse_outside(slices: Sequence[Slice], sources: Mapping[str, LayerSource]) -> None:
    """Raise one error naming every range that its model does not have."""
    outside = [
        f"{one.where}: layers {one.first} to {one.last - 1} of {one.model}, which has {sources[one.model].num_layers}"
        for one in slices
        if one.last > sources[one.model].num_layers
    ]
    if outside:
        raise ModelError(
            "slices reach beyond their models\n  " + "\n  ".join(outside),
            help="layer_range: [first, last] counts from 0 and leaves last out",
        )


def layers_of(stacking: Stacking, sources: Mapping[str, LayerSource]) -> dict[str, Taken]:
    """The tensors of all layers, under the names of the first source."""
    prefix, taken, new = sources[stacking.slices[0].model].prefix, {}, 0
    for one in stacking.slices:
        source = sources[one.model]
        for number in range(one.first, one.last):
            for rest, name in source.layers[number].items():
                taken[f"{prefix}{new}.{rest}"] = Taken(source, name, scale_of(one.scale, name))
            new += 1
    return taken


def scale_of(rules: Sequence[ScaleRule], name: str) -> float:
    """What the first rule that fits says; 1 where none does."""
    return next((rule.value for rule in rules if rule.filter is None or rule.filter in name), 1.0)


def root_of(source: LayerSource, rules: Sequence[ScaleRule]) -> dict[str, Taken]:
    """The tensors that no layer holds: embeddings, last norm, head."""
    return {name: Taken(source, name, scale_of(rules, name)) for name in source.root}


def dtype_of(source: LayerSource, wanted: str | None) -> torch.dtype:
    """The dtype that was asked for, else the most frequent one of a layer's floats."""
    if wanted is not None:
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype
    dtypes = [source.weights.read(name).dtype for name in source.layers[0].values()]
    floats = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(set(floats), key=floats.count)


def fit(
    weights: Stacked, first: LayerSource, config: Mapping[str, Any], file: str
) -> tuple[PreTrainedModel, dict[str, tuple[Origin, str]]]:
    """Hold names and shapes against the net that transformers builds of `config`; return both."""
    assert first.config is not None
    net = plain_net(type(first.config).from_dict(dict(config)), dtype=torch.float32)
    tied: dict[str, str] = dict(net.all_tied_weights_keys)
    shapes = {name: tuple(value.shape) for name, value in net.state_dict().items() if name not in tied}
    try:
        return net, find_origins(net, weights, shapes, tied)
    except ModelError as problem:
        raise ModelError(
            f"these layers do not make a {type(net).__name__}: {problem.what}",
            where=file,
            help="a layer cannot stand where this architecture wants one of another kind",
        ) from problem


def take_end(
    weights: Stacked,
    last: LayerSource,
    rules: Sequence[ScaleRule],
    net: PreTrainedModel,
    origins: Mapping[str, tuple[Origin, str]],
) -> None:
    """Take what comes behind the layers (last norm, head) from the model of the last slice."""
    names, inside = list(net.state_dict()), tuple(f"{block}." for block in find_blocks(net))
    end = max(index for index, name in enumerate(names) if name.startswith(inside))
    for name in names[end + 1 :]:
        if name in origins and name not in net.all_tied_weights_keys:
            for file_name in files_of(origins[name][0]):
                weights.taken[file_name] = Taken(last, file_name, scale_of(rules, file_name))


def untie(
    weights: Stacked,
    first: LayerSource,
    last: LayerSource,
    net: PreTrainedModel,
    origins: Mapping[str, tuple[Origin, str]],
) -> bool:
    """Give the stack a head of its own where its two ends come from tied models with different embeddings."""
    apart = False
    for head, embedding in dict(net.all_tied_weights_keys).items():
        (name,) = files_of(origins[embedding][0])
        if last is not first and not torch.equal(last.weights.read(name), first.weights.read(name)):
            weights.taken[head] = Taken(last, name)
            apart = True
    return apart


def files_of(origin: Origin) -> list[str]:
    """The tensors of the files that make a parameter."""
    return [name for names in origin.sources.values() for name in names]


def write_stack(stack: Stack, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> list[str]:
    """Write the stack in `folder`, which is there; return the names of the files of weights.

    Args:
        shard_bytes: a file is closed before it grows beyond this.
    """
    weights, dtype = stack.weights, stack.dtype
    pieces = {}
    for name in weights.names():
        stored = weights.taken[name].source.weights.read(weights.taken[name].name).dtype
        pieces[name] = {name: TensorShape(weights.shape(name), dtype if stored.is_floating_point else stored)}

    def read(names: list[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, cast(weights.read(name), dtype)) for name in names)

    files = write_files(folder, pieces, read, shard_bytes=shard_bytes)
    (folder / "config.json").write_text(json.dumps(stack.config, indent=2) + "\n", encoding="utf8")
    copy_beside(stack.places[0][0].source, stack.tokenizer, folder)
    return files
