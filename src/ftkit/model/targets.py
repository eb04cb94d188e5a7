"""Which modules an adapter is on: the recipe's targets as PEFT takes them, each held against the net."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key
from torch import nn
from transformers.pytorch_utils import Conv1D

from ftkit.errors import ModelError

if TYPE_CHECKING:
    from ftkit.recipe.section.adapter import AdapterSection

ALL_LINEAR = "all-linear"


def linears_of_blocks(net: nn.Module, blocks: Iterable[str]) -> list[str]:
    """Names of the linear modules inside `blocks`."""
    return [
        f"{block}.{name}"
        for block in blocks
        for name, module in net.get_submodule(block).named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    ]


def targets(section: AdapterSection, net: nn.Module, linears: list[str]) -> list[str] | str:
    """What goes into PEFT's `target_modules`: a regular expression, or names as short as they can be."""
    given = section.lora_target_modules
    if isinstance(given, str) and given != ALL_LINEAR:
        return given
    names = set() if isinstance(given, str) or given is None else set(given) - {ALL_LINEAR}
    if section.lora_target_linear or given == ALL_LINEAR or ALL_LINEAR in (given or ()):
        names |= short_names(net, linears)
    if not names:
        raise ModelError(
            "the adapter has no targets",
            where="lora_target_modules",
            help="list modules, or set lora_target_linear: true",
        )
    return sorted(names)


def short_names(net: nn.Module, linears: list[str]) -> set[str]:
    """Last parts of `linears` where these match nothing else in the net, whole names otherwise."""
    wanted = set(linears)
    others = {
        name.rpartition(".")[2]
        for name, module in net.named_modules()
        if name not in wanted and isinstance(module, nn.Linear | Conv1D)
    }
    return {name if name.rpartition(".")[2] in others else name.rpartition(".")[2] for name in linears}


def chosen_layers(section: AdapterSection, num_blocks: int) -> dict[str, Any]:
    """What goes into PEFT's `layers_to_transform` and `layers_pattern`, if the recipe chooses among the blocks.

    Raises:
        ModelError: there is no such block, or the targets are a regular expression, which can choose by itself.
    """
    layers, pattern = section.peft_layers_to_transform, section.peft_layers_pattern
    if layers is None and pattern is None:
        return {}
    given, key = section.lora_target_modules, "peft_layers_pattern" if layers is None else "peft_layers_to_transform"
    indices = [layers] if isinstance(layers, int) else list(layers or ())
    outside = [index for index in indices if not 0 <= index < num_blocks]
    is_pattern = isinstance(given, str) and given != ALL_LINEAR
    if is_pattern or not indices or outside:
        said = f"lora_target_modules: {given}" if is_pattern else ", ".join(map(str, outside or indices)) or "no blocks"
        helps = "choose the blocks in the regular expression: .*layers\\.[0-3]\\..*" if is_pattern else ""
        raise ModelError(
            f"these blocks cannot be chosen, got {said}",
            where=key,
            help=helps or f"peft_layers_to_transform lists blocks, 0 to {num_blocks - 1}",
        )
    patterns = list(pattern) if isinstance(pattern, tuple) else pattern
    return {"layers_to_transform": indices, "layers_pattern": patterns}


def check_patterns(config: LoraConfig, net: nn.Module) -> None:
    """Raise one error that names every rank or alpha of its own that no adapted module takes, or that is no number."""
    modules = adapted_modules(config, net)
    for key in ("rank_pattern", "alpha_pattern"):
        given = getattr(config, key) or {}
        kinds = int if key == "rank_pattern" else (int, float)
        wrong = [
            f"{name}: {value}"
            for name, value in given.items()
            if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0
        ]
        unused = [name for name in given if not any(get_pattern_key([name], module) == name for module in modules)]
        if wrong or unused:
            raise ModelError(
                f"no adapted module takes these, got {', '.join((*wrong, *unused))}",
                where=f"lora_{key}",
                help=f"give positive numbers for {', '.join(sorted({name.rpartition('.')[2] for name in modules}))}",
            )


def check_targets(config: LoraConfig, net: nn.Module) -> None:
    """Raise one error that names every target, and every module to save, that matches nothing."""
    names = [name for name, _ in net.named_modules() if name]
    wanted = [config.target_modules] if isinstance(config.target_modules, str) else sorted(config.target_modules or ())
    missing = [target for target in wanted if not any(matches(target, name, config) for name in names)]
    saved = [
        name for name in config.modules_to_save or () if not any(n == name or n.endswith(f".{name}") for n in names)
    ]
    if not missing and not saved:
        return
    existing = sorted(
        {
            name.rpartition(".")[2]
            for name, module in net.named_modules()
            if isinstance(module, nn.Linear | nn.Embedding | Conv1D)
        }
    )
    hints = [hint for name in (*missing, *saved) for hint in difflib.get_close_matches(name, existing, n=1)]
    raise ModelError(
        f"no module of {type(net).__name__} matches, got {', '.join((*missing, *saved))}",
        where="lora_target_modules" if missing else "lora_modules_to_save",
        help=f"{f'did you mean {hints[0]}? ' if hints else ''}there are: {', '.join(existing)}",
    )


def matches(target: str, name: str, config: LoraConfig) -> bool:
    """Whether PEFT would adapt module `name` for this one target."""
    alone = LoraConfig(target_modules=target if isinstance(config.target_modules, str) else [target])
    alone.layers_to_transform, alone.layers_pattern = config.layers_to_transform, config.layers_pattern
    return bool(check_target_module_exists(alone, name))


def adapted_modules(config: LoraConfig, net: nn.Module) -> tuple[str, ...]:
    """Names of the modules that PEFT will adapt."""
    return tuple(name for name, _ in net.named_modules() if name and check_target_module_exists(config, name))
