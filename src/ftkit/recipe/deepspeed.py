"""`deepspeed:` as a file, as one of the file names everybody uses, or as a mapping in the recipe.

Recipes travel without the files they name. A path is looked up as it stands, then beside the recipe; if it is in
neither place but ends in a well-known name (`.../deepspeed_configs/zero3_bf16.json`), ftkit's own configuration of that
meaning is used, and said so. Numbers inside must agree with the recipe's or be `auto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

from ftkit.recipe.edits import change
from ftkit.recipe.fit import flag, unknown_key
from ftkit.recipe.migrations import as_number, moved
from ftkit.recipe.section.deepspeed_keys import in_words, unserved_keys
from ftkit.recipe.source import Source

# Name of the file -> ZeRO stage, what is offloaded to the host.
WELL_KNOWN: Mapping[str, tuple[int, tuple[str, ...]]] = MappingProxyType(
    {
        "zero1": (1, ()),
        "zero1_torch_compile": (1, ()),
        "zero2": (2, ()),
        "zero2_torch_compile": (2, ()),
        "zero2_cpuoffload": (2, ("optimizer",)),
        "zero2_offload": (2, ("optimizer",)),
        "zero2_moe_offload": (2, ("optimizer",)),
        "zero3": (3, ()),
        "zero3_bf16": (3, ()),
        "zero3_offload": (3, ("optimizer", "param")),
        "zero3_bf16_cpuoffload_all": (3, ("optimizer", "param")),
        "zero3_bf16_cpuoffload_params": (3, ("param",)),
    }
)
# DeepSpeed's key (dots go deeper) -> the recipe's.
SAME_NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "train_micro_batch_size_per_gpu": "micro_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "gradient_clipping": "max_grad_norm",
        "optimizer.params.lr": "learning_rate",
        "optimizer.params.weight_decay": "weight_decay",
    }
)
SAME_SWITCHES: Mapping[str, str] = MappingProxyType({"bf16.enabled": "bf16", "fp16.enabled": "fp16"})
# Words of accelerate's configuration: those that say something here, and why the others say nothing.
OF_ACCELERATE = (
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
IDLE_OF_ACCELERATE: Mapping[str, str] = MappingProxyType(
    {
        "zero3_init_flag": "weights are read block by block onto the device that keeps them",
        "zero3_save_16bit_model": "how the model is saved is said by the recipe",
        "deepspeed_multinode_launcher": "it is a matter of the launcher",
        "deepspeed_hostfile": "it is a matter of the launcher",
        "deepspeed_exclusion_filter": "it is a matter of the launcher",
        "deepspeed_inclusion_filter": "it is a matter of the launcher",
        "deepspeed_moe_layer_cls_names": "experts are sharded like all other weights",
    }
)


def normalise_deepspeed(source: Source, *, lenient: bool = False) -> None:
    """Check that the configuration can be had, and that a file's numbers agree with the recipe's."""
    value = source.data.get("deepspeed")
    if isinstance(value, dict) and ("zero_stage" in value or "offload_optimizer_device" in value):
        from_accelerate(source, value, lenient=lenient)
    elif value == "" or flag(value) is False:
        change(source, ("deepspeed",), None)
    elif isinstance(value, str) and "$" not in value:
        try:
            config = read_config(value, source.file)
        except ValueError as bad:
            source.note("deepspeed-file", ("deepspeed",), f"{value} is not JSON ({bad})", "mend the file")
            return
        if config is not None:
            compare(source, value, config)
        elif well_known(value) is not None:
            message = f"{value} is not here; ftkit's own configuration of that name is used"
            source.note("deepspeed-file", ("deepspeed",), message, severity="note")
        else:
            help = f"the run needs it; or write the mapping itself, or one of {', '.join(WELL_KNOWN)} with .json"
            message = f"there is no file {value} here or beside the recipe"
            source.note("deepspeed-file", ("deepspeed",), message, help, severity="warning")


def deepspeed_config(value: str | Mapping[str, Any], recipe_file: str) -> Mapping[str, Any]:
    """The configuration that a recipe's `deepspeed` stands for.

    Raises:
        ValueError: the file cannot be read, or is not JSON.
        FileNotFoundError: there is no such file, and the name is not well known.
    """
    if not isinstance(value, str):
        return value
    config = read_config(value, recipe_file) or well_known(value)
    if config is None:
        raise FileNotFoundError(value)
    return config


def read_config(path: str, recipe_file: str) -> Mapping[str, Any] | None:
    """The JSON mapping in the file at `path`, relative to here or to the recipe; None where there is no such file.

    Raises:
        ValueError: the file cannot be read, or is not JSON.
    """
    for place in (FilePath(path), FilePath(recipe_file).parent / path):
        if is_file(place):
            import json  # only recipes that bring such a file need it

            try:
                config = json.loads(place.read_text(encoding="utf-8"))
            except RecursionError:
                raise ValueError("it is nested too deeply") from None
            except OSError as bad:
                raise ValueError(f"it cannot be read: {bad.strerror}") from None
            if not isinstance(config, dict):
                raise ValueError("a mapping is expected")
            return config
    return None


def is_file(place: FilePath) -> bool:
    """Whether there is such a file; a name that no file can have (too long, of a folder that is closed) is none."""
    try:
        return place.is_file()
    except (OSError, ValueError):
        return False


def well_known(path: str) -> Mapping[str, Any] | None:
    """Our own configuration for a file name that everybody uses; None for any other."""
    known = WELL_KNOWN.get(FilePath(path).name.removesuffix(".json"))
    if known is None:
        return None
    stage, offloaded = known
    zero: dict[str, Any] = {"stage": stage}
    zero |= {f"offload_{part}": {"device": "cpu", "pin_memory": True} for part in offloaded}
    return {"zero_optimization": zero}


def compare(source: Source, path: str, config: Mapping[str, Any]) -> None:
    """Refuse numbers and precisions in a file that differ from the recipe's, and keys that ftkit does not serve."""
    for theirs, ours in {**SAME_NUMBERS, **SAME_SWITCHES}.items():
        inside: Any = config
        for step in theirs.split("."):
            inside = inside.get(step) if isinstance(inside, Mapping) else None
        mine, read = source.data.get(ours), flag if theirs in SAME_SWITCHES else as_number
        if inside in (None, "auto") or mine in (None, "auto") or read(inside) == read(mine):
            continue
        message = f"{path} says {theirs}: {in_words(inside)}, the recipe {ours}: {in_words(mine)}"
        source.note("deepspeed-contradicts-recipe", ("deepspeed",), message, f'write "{theirs}": "auto" in that file')
    for key in unserved_keys(config):
        message = f"{path} says {key.path}: {key.shown}, which ftkit does not serve"
        help = f"take it out of that file{f': {key.reason}' if key.reason else ''}"
        source.note("deepspeed-unserved", ("deepspeed",), message, help)


def from_accelerate(source: Source, value: Mapping[str, Any], *, lenient: bool) -> None:
    """A mapping in the words of accelerate's configuration -> in DeepSpeed's; a word that says nothing is named."""
    for key in (key for key in value if key not in OF_ACCELERATE and value[key] is not None):
        path = ("deepspeed", key)
        if key in IDLE_OF_ACCELERATE:
            message = f"`{key}` has no effect: {IDLE_OF_ACCELERATE[key]}"
            source.note("no-effect", path, message, severity="note", at_key=True)
        else:
            unknown_key(source, path, (*OF_ACCELERATE, *IDLE_OF_ACCELERATE), lenient=lenient)
    zero: dict[str, Any] = {"stage": value.get("zero_stage", 2)}
    for part in ("optimizer", "param"):
        device = value.get(f"offload_{part}_device")
        if device not in (None, "none"):
            place = value.get(f"offload_{part}_nvme_path")
            nvme = {} if place in (None, "none") else {"nvme_path": place}
            zero[f"offload_{part}"] = {"device": device, **nvme}
    kept = {key: value[key] for key in ("gradient_accumulation_steps", "gradient_clipping") if key in value}
    change(source, ("deepspeed",), {**kept, "zero_optimization": zero})
    moved(source, ("deepspeed",), "accelerate's words for DeepSpeed are written in DeepSpeed's own")
