"""The configuration of a stack of layers: config.json of the first model with what belongs to a layer cut anew."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ftkit.errors import ModelError
from ftkit.save.interleave_source import LAYER_KEYS, LayerSource

# Lists of the numbers of layers; every other list as long as the model is deep has one value a layer.
NUMBERS_OF_LAYERS = ("mlp_only_layers", "moe_layers", "cross_attention_layers", "full_attn_idxs")
NOT_OF_LAYERS = ("architectures", "attention_types")
# What makes a layer depend on its place, and has no value a layer: a layer put elsewhere would compute other things.
BY_PLACE = ("attention_types", "scale_attn_by_inverse_layer_idx")
# What may differ between models whose layers fit on one another; the first model's counts.
FREE = frozenset(
    {
        "architectures",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "max_position_embeddings",
        "attention_dropout",
        "initializer_range",
        "auto_map",
        "max_window_layers",
        "_name_or_path",
        *LAYER_KEYS,
        *NUMBERS_OF_LAYERS,
    }
)
Place = tuple[LayerSource, int]  # a layer's model and its number there


def stacked_config(places: Sequence[Place], dtype: str) -> dict[str, Any]:
    """Return config.json of the layers at `places`, one on another.

    Raises:
        ModelError: a layer's work depends on its number in a way that the configuration cannot say.
    """
    first = places[0][0]
    refuse_by_place(first)
    values = copy.deepcopy(first.raw)
    for name, value in first.settings().items():
        if is_by_layer(name, value, first.num_layers):
            values[name] = [source.settings()[name][number] for source, number in places]
        elif name in NUMBERS_OF_LAYERS and value:
            values[name] = [new for new, (source, number) in enumerate(places) if number in source.settings()[name]]
    values[first.layer_key] = len(places)
    values["torch_dtype" if "torch_dtype" in values else "dtype"] = dtype
    return values


def is_by_layer(name: str, value: Any, num_layers: int) -> bool:
    """Whether a setting is a list with one value a layer."""
    other = name in NUMBERS_OF_LAYERS or name in NOT_OF_LAYERS or name.endswith(("token_id", "token_ids"))
    return isinstance(value, list | tuple) and len(value) == num_layers and not other


def refuse_by_place(source: LayerSource) -> None:
    """Raise for settings under which a layer works otherwise elsewhere."""
    found = [f"{name} {source.raw[name]}" for name in BY_PLACE if source.raw.get(name)]
    if found:
        raise ModelError(
            f"a layer of this model depends on its number, got {', '.join(found)}",
            where=source.name,
            help="such a model cannot be stacked by its configuration",
        )


def refuse_different(sources: Sequence[LayerSource]) -> None:
    """Raise one error naming everything in which the models differ and a stack of them would not work."""
    report = [line for source in sources[1:] for line in differences(sources[0], source)]
    if report:
        raise ModelError(
            "these models do not fit on one another\n  " + "\n  ".join(report),
            where=sources[0].name,
            help="layers can be stacked of models with the same configuration, such as fine-tunes of one base",
        )


def differences(first: LayerSource, other: LayerSource) -> Iterator[str]:
    """What `other` has otherwise."""
    mine, theirs = flat(first), flat(other)
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            yield f"{name}: {mine.get(name)} in {first.name}, {theirs.get(name)} in {other.name}"


def flat(source: LayerSource) -> Mapping[str, Any]:
    """The settings that must be the same."""
    return {
        name: value
        for name, value in source.settings().items()
        if name not in FREE and not is_by_layer(name, value, source.num_layers)
    }
