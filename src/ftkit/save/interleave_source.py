"""A model that layers are taken from: its files, its configuration, and which of its tensors are layers.

Tensors keep the names of the files, and layers are found by those, whatever the architecture: `model.layers.N.`,
`transformer.h.N.`, `gpt_neox.layers.N.` No code of the model runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from ftkit.errors import ModelError
from ftkit.model.checkpoint_files import Weights, open_weights
from ftkit.model.config import check_config_file, first_line, must_come_from_cache, read_config
from ftkit.model.embedded import resolve_base_model
from ftkit.recipe.section.model import ModelSection

FIRST_NUMBER = re.compile(r"((?:.*?\.)?)(\d+)\.(.+)")  # what stands before, the number, what stands behind
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


class LayerSource:
    """An opened model.

    Raises:
        ModelError: no such model, a quantized one, or one whose layers cannot be told.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = resolve_base_model(name)
        self.raw = read_raw_config(self.source)
        self.config: PretrainedConfig | None = None  # None for an architecture that transformers does not know
        if self.raw.get("model_type") in CONFIG_MAPPING:
            self.config, _ = read_config(ModelSection(base_model=name))
        if self.raw.get("quantization_config"):
            raise ModelError("layers of a quantized checkpoint cannot be stacked", where=name, help="use the original")
        self.weights: Weights = open_weights(self.source, None)
        self.layer_key = next((key for key in LAYER_KEYS if isinstance(self.raw.get(key), int)), "")
        if not self.layer_key:
            raise ModelError(f"config.json has none of {', '.join(LAYER_KEYS)}", where=name)
        self.num_layers: int = self.raw[self.layer_key]
        self.prefix, self.layers, self.root = split_layers(self.weights.names(), self.num_layers, name)

    def settings(self) -> Mapping[str, Any]:
        """The configuration with everything that transformers works out of it, such as the type of each layer."""
        values: Mapping[str, Any] = self.raw if self.config is None else self.config.to_dict()
        return values


def read_raw_config(source: str) -> dict[str, Any]:
    """config.json as it is."""
    folder = Path(source).expanduser()
    if source.startswith((".", "/", "~")) and not folder.is_dir():
        raise ModelError("no such folder", where=f"model: {source}", help="give a folder with config.json, or a hub id")
    check_config_file(source)
    from_cache = not folder.is_dir() and must_come_from_cache(source, None)
    try:
        values, _ = PretrainedConfig.get_config_dict(
            str(folder) if folder.is_dir() else source, local_files_only=from_cache
        )
    except (OSError, ValueError) as problem:
        raise ModelError(
            f"no usable configuration: {first_line(problem)}",
            where=f"model: {source}",
            help="check the name; without network the model must be in the hub's cache",
        ) from problem
    return {key: value for key, value in values.items() if not key.startswith("_")}


def split_layers(
    names: Iterable[str], num_layers: int, where: str
) -> tuple[str, dict[int, dict[str, str]], tuple[str, ...]]:
    """Return what stands before a layer's number, for each layer its names behind it -> whole, and all other names.

    Raises:
        ModelError: no part of the names, or more than one, counts exactly these layers.
    """
    groups: dict[str, dict[int, dict[str, str]]] = {}
    for name in names:
        if match := FIRST_NUMBER.fullmatch(name):
            groups.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = name
    found = [prefix for prefix, layers in groups.items() if sorted(layers) == list(range(num_layers))]
    if len(found) != 1:
        counted = (
            ", ".join(f"{prefix}* ({len(layers)})" for prefix, layers in groups.items()) or "nothing with a number"
        )
        raise ModelError(
            f"config.json says {num_layers} layers, and {len(found)} parts of the names have that many, got {counted}",
            where=where,
            help="look whether config.json belongs to these weights",
        )
    layers = groups[found[0]]
    inside = {name for layer in layers.values() for name in layer.values()}
    return found[0], layers, tuple(name for name in names if name not in inside)
