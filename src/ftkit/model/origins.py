"""Which tensors of a checkpoint make which parameter of the net.

Most names agree. Where they do not (Mixtral's one file tensor an expert against one parameter for all experts),
transformers has a table of renamings and conversions for its own loader; this reads the same table, so that every
architecture transformers loads, ftkit loads. The table is internal to transformers: the version is pinned and
tests/model/test_load.py holds the result against `from_pretrained`.

All of it happens on names and shapes: a checkpoint that does not fit is refused before a single weight is read.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from ftkit.errors import ModelError
from ftkit.model.checkpoint_files import Weights

Read = Callable[[str], Tensor]


@dataclass
class Origin:
    """Tensors that become one or several parameters together.

    Args:
        target: the (first) parameter's name.
        sources: file names by the pattern of the conversion that they match.
        converter: None when the tensor is taken as it is.
    """

    target: str
    sources: dict[str, list[str]] = field(default_factory=dict)
    converter: WeightConverter | None = None

    @property
    def as_it_is(self) -> str | None:
        """The name in the file of a tensor that is taken unchanged; None where there is a conversion."""
        return None if self.converter is not None else next(iter(self.sources.values()))[0]

    def make(self, net: PreTrainedModel, read: Read) -> dict[str, Tensor]:
        """Read the sources and return the parameters they make, by name."""
        if self.converter is None:
            ((name,),) = self.sources.values()
            return {self.target: read(name)}
        converter = copy.deepcopy(self.converter)
        for pattern, names in self.sources.items():
            for name in names:
                later: Any = partial(read, name)  # annotated as a Future; any callable is taken
                converter.add_tensor(self.target, name, pattern, later)
        made = converter.convert(self.target, model=net, config=net.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def find_origins(
    net: PreTrainedModel, weights: Weights, shapes: Mapping[str, tuple[int, ...]], tied: Mapping[str, str]
) -> dict[str, tuple[Origin, str]]:
    """Return, for every name in `shapes`, its origin and the name under which that origin makes it.

    Args:
        weights: the checkpoint, of which only names and shapes are read.
        net: any form of the net; only its classes and configuration are looked at.
        shapes: what the checkpoint should hold, by transformers' plain names.
        tied: name -> the parameter it is the same tensor as; the file may hold either or both.

    Raises:
        ModelError: naming every missing, unexpected and misshapen tensor.
    """
    wanted = {**shapes, **{name: shapes[source] for name, source in tied.items()}}
    origins, unexpected = collect(net, weights, wanted)
    made = {name: (origin, value) for origin in origins for name, value in origin.make(net, weights.empty).items()}
    found = {name: (origin, name) for name, (origin, _) in made.items()}
    for name, source in tied.items():
        if source not in found and name in found:
            found[source] = found[name]
    report = [
        f"missing: {name}"
        for name in shapes
        if name not in found and not is_ignored(name, net._keys_to_ignore_on_load_missing)
    ]
    report += [f"unexpected: {name}" for name in unexpected if not is_ignored(name, outdated_names(net))]
    report += [
        f"misshapen: {name}, got {tuple(value.shape)}, expected {wanted[name]}"
        for name, (_, value) in made.items()
        if tuple(value.shape) != wanted[name]
    ]
    if report:
        raise ModelError(
            f"the checkpoint does not fit {type(net).__name__}\n  " + "\n  ".join(report),
            where="base_model",
            help="check that config.json belongs to these weights, and model_config in the recipe",
        )
    return found


def outdated_names(net: PreTrainedModel) -> set[str]:
    """Patterns of tensors that older versions saved and nobody needs: what the net says, and rotary tables."""
    return {*(net._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq$"}


def is_ignored(name: str, patterns: Iterable[str] | None) -> bool:
    """Whether one of the regular expressions is found in `name`."""
    return any(re.search(pattern, name) for pattern in patterns or ())


def collect(
    net: PreTrainedModel, weights: Weights, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[Origin], list[str]]:
    """Group the file's tensors by what they make; and those that make nothing the net has."""
    table = get_model_conversion_mapping(net)
    renamings = [entry for entry in table if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in table if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    origins: dict[str, Origin] = {}
    unexpected: list[str] = []
    for name in sorted(weights.names(), key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, net.base_model_prefix, dict(shapes))
        if target not in shapes and name in shapes:
            target, pattern = name, None
        if target not in shapes:
            unexpected.append(name)
            continue
        converter = None if pattern is None else by_pattern[pattern]
        origin = origins.setdefault(target, Origin(target, converter=converter))
        origin.sources.setdefault(pattern or name, []).append(name)
    return list(origins.values()), unexpected
