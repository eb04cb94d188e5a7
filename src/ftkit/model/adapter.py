"""The adapter as PEFT knows it: which modules, with what settings, under what names.

ftkit injects with PEFT, names parameters as PEFT does and writes PEFT's files; only the layer that computes is its own
(`FusedLoraLinear`, registered for one LoraConfig at a time).
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ftkit.errors import ModelError
from ftkit.model.lora import FusedLoraLinear
from ftkit.model.naming import ADAPTER, is_adapter, peft_name
from ftkit.model.quantized import QuantizedLinear

if TYPE_CHECKING:
    from ftkit.recipe.section.adapter import AdapterSection

ALL_LINEAR = "all-linear"


def lora_config(section: AdapterSection, net: PreTrainedModel, blocks: Iterable[str], *, base_model: str) -> LoraConfig:
    """Return PEFT's configuration for `section`, every target checked against `net`.

    Args:
        section: the recipe's.
        base_model: the recipe's name of the base, for adapter_config.json.
        net: the plain net, on meta.
        blocks: names of the decoder blocks; `all-linear` means the linears in these.

    Raises:
        ModelError: a target or a module to save matches nothing, or the configuration to continue cannot be read.
    """
    if section.lora_model_dir:
        config = read_adapter_config(Path(section.lora_model_dir))
        refuse_contradiction(section, config, net, blocks)
        if "lora_dropout" in section.model_fields_set:
            config.lora_dropout = section.lora_dropout or 0.0
    else:
        linears = linears_of_blocks(net, blocks)
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=section.lora_r,
            lora_alpha=section.lora_alpha,
            lora_dropout=section.lora_dropout or 0.0,
            target_modules=targets(section, net, linears),
            modules_to_save=list(section.lora_modules_to_save) or None,
            fan_in_fan_out=any(isinstance(net.get_submodule(name), Conv1D) for name in linears),  # GPT-2 keeps W^T
            use_rslora=bool(section.peft_use_rslora),
            use_dora=bool(section.peft_use_dora),
        )
    if config.modules_to_save and getattr(net.config, "tie_word_embeddings", False):
        config.ensure_weight_tying = True  # a trained copy of the embedding is the head's too, as in the base model
    config.base_model_name_or_path = base_model
    check_targets(config, net)
    return config


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


def inject(net: PreTrainedModel, config: LoraConfig) -> None:
    """Put the adapter's layers into `net`, on meta, and leave only them trainable."""
    config._register_custom_module({QuantizedLinear: FusedLoraLinear, nn.Linear: FusedLoraLinear})
    inject_adapter_in_model(config, net, adapter_name=ADAPTER, low_cpu_mem_usage=True)
    head: object = net.get_output_embeddings()  # type: ignore[no-untyped-call]
    for module in net.modules():
        if isinstance(module, ModulesToSaveWrapper):
            train_in_float32(module, is_head=module is head)


def train_in_float32(wrapper: ModulesToSaveWrapper, *, is_head: bool) -> None:
    """Make the trained copy of a saved module float32, like every trained parameter beside a 16-bit base.

    Hooks fit it to its neighbours: floats come in as float32 (under autocast the product is 16-bit anyway) and go out
    in the base's dtype; the head's logits stay float32.
    """
    copied, dtype = wrapper.modules_to_save[ADAPTER], next(wrapper.original_module.parameters()).dtype
    if dtype == torch.float32:
        return

    def widen(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x.float() if x.is_floating_point() else x for x in inputs)

    def narrow(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output if is_head else output.to(dtype)

    copied.float()
    copied.register_forward_pre_hook(widen)
    copied.register_forward_hook(narrow)


def read_adapter_config(folder: Path) -> LoraConfig:
    """Read the configuration of the adapter to continue.

    Raises:
        ModelError: there is none, or it is not one of LoRA.
    """
    where = f"lora_model_dir: {folder}"
    if not (folder / "adapter_config.json").is_file():
        raise ModelError("no adapter_config.json there", where=where, help="give the folder of a PEFT adapter")
    try:
        config = LoraConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as problem:
        raise ModelError(
            f"adapter_config.json cannot be read ({type(problem).__name__}: {problem})",
            where=where,
            help="copy the adapter's folder again; it must be as PEFT wrote it",
        ) from problem
    wrong = wrong_types(config)
    if wrong:
        raise ModelError(
            f"adapter_config.json is not that of a LoRA adapter, got {', '.join(wrong)}",
            where=where,
            help="give the folder of a LoRA adapter as PEFT wrote it",
        )
    config.inference_mode = False
    return config


def wrong_types(config: LoraConfig) -> list[str]:
    """What of the settings that every LoRA adapter has is of no use, as `name value`."""
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        return [f"peft_type {kind}"]
    good = {
        "r": isinstance(config.r, int) and config.r > 0,
        "lora_alpha": isinstance(config.lora_alpha, int | float),
        "target_modules": isinstance(config.target_modules, str | set),
        "modules_to_save": isinstance(config.modules_to_save, list | None),
        "use_dora": isinstance(config.use_dora, bool),
        "use_rslora": isinstance(config.use_rslora, bool),
    }
    return [f"{name} {getattr(config, name)!r}" for name, is_good in good.items() if not is_good]


def refuse_contradiction(
    section: AdapterSection, config: LoraConfig, net: PreTrainedModel, blocks: Iterable[str]
) -> None:
    """Raise if the recipe says otherwise than the adapter it continues; it may repeat its settings, or be silent."""
    saved = sorted(config.modules_to_save or ())
    pairs: dict[str, tuple[object, object]] = {
        "lora_r": (section.lora_r, config.r),
        "lora_alpha": (section.lora_alpha, config.lora_alpha),
        "lora_modules_to_save": (sorted(section.lora_modules_to_save or ()), saved),
        "peft_use_dora": (bool(section.peft_use_dora), bool(config.use_dora)),
        "peft_use_rslora": (bool(section.peft_use_rslora), bool(config.use_rslora)),
    }
    given = {key for key in section.model_fields_set if getattr(section, key) is not None}
    wrong = [
        f"{key} {shown(mine)} (the adapter has {shown(theirs)})"
        for key, (mine, theirs) in pairs.items()
        if key in given and mine != theirs
    ]
    wrong += contradicting_targets(section, config, net, linears_of_blocks(net, blocks))
    if wrong:
        raise ModelError(
            f"the recipe contradicts the adapter it continues, got {', '.join(wrong)}",
            where=f"lora_model_dir: {section.lora_model_dir}",
            help="take the keys out of the recipe, or start a new adapter",
        )


def contradicting_targets(
    section: AdapterSection, config: LoraConfig, net: PreTrainedModel, linears: list[str]
) -> list[str]:
    """The recipe's target keys, if they adapt other modules than the adapter does; names may differ, modules not."""
    theirs = set(adapted_modules(config, net))
    names = sorted({name.rpartition(".")[2] for name in theirs})
    if section.lora_target_linear or section.lora_target_modules:
        wanted = LoraConfig(target_modules=targets(section, net, linears))
        if set(adapted_modules(wanted, net)) == theirs:
            return []
    elif "lora_target_linear" not in section.model_fields_set or theirs != set(linears):
        return []
    keys = [key for key in ("lora_target_linear", "lora_target_modules") if key in section.model_fields_set]
    mine = " and ".join(f"{key} {shown(getattr(section, key))}" for key in keys if getattr(section, key) is not None)
    return [f"{mine} (the adapter is on {len(theirs)} modules: {', '.join(names)})"]


def shown(value: object) -> str:
    """A setting as a recipe would write it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def adapter_files(net: nn.Module) -> dict[str, str]:
    """Return what adapter_model.safetensors holds: PEFT's name -> the net's name of the parameter.

    A trained copy that two modules share (tied embedding and head) is one parameter and goes into the file under both
    names, as PEFT expects.
    """
    first: dict[int, str] = {}
    files = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        if is_adapter(name):
            files[peft_name(name)] = first.setdefault(id(parameter), name)
    return files


def write_adapter_config(config: LoraConfig, folder: Path) -> None:
    """Write adapter_config.json as PEFT does for a finished adapter."""
    finished = copy.deepcopy(config)
    finished.inference_mode = True
    finished.save_pretrained(str(folder))
