"""The dialects of FSDP -> one: a list under `fsdp`, and `fsdp_config` without `fsdp_` prefixes.

Recipes say it in three ways: `fsdp: [full_shard, auto_wrap]` with `fsdp_config: {fsdp_offload_params: ...}` (2023),
the same names without the prefix (2025), and `fsdp_config` alone with `fsdp_version: 2`. All become the second, with
`fsdp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ftkit.recipe.edits import change, rename
from ftkit.recipe.fit import MISFIT, fit, flag, unknown_key
from ftkit.recipe.source import Source

# What `fsdp_config` may say, with the type of each.
SETTINGS: Mapping[str, Any] = {
    "offload_params": bool,
    "auto_wrap_policy": Literal["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"],
    "transformer_layer_cls_to_wrap": tuple[str, ...] | str,
    "min_num_params": int,
    "state_dict_type": Literal["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"],
    "final_state_dict_type": Literal["FULL_STATE_DICT", "SHARDED_STATE_DICT"],
    "sharding_strategy": Literal[
        "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2", "NO_SHARD"
    ],
    "reshard_after_forward": bool | int,
    "activation_checkpointing": bool,
    "mixed_precision_policy": str,
    "version": int,
}
# Settings of FSDP1, or of the way others load a model: the second generation has no such choice.
NO_EFFECT: Mapping[str, Any] = {
    "sync_module_states": bool,
    "use_orig_params": bool,
    "limit_all_gathers": bool,
    "cpu_ram_efficient_loading": bool,
    "backward_prefetch": str,
    "backward_prefetch_policy": str,
    "forward_prefetch": bool,
}
STRATEGY_NUMBERS = {1: "FULL_SHARD", 2: "SHARD_GRAD_OP", 3: "NO_SHARD", 4: "HYBRID_SHARD", 5: "HYBRID_SHARD_ZERO2"}


def normalise_fsdp(source: Source, *, lenient: bool) -> None:
    """Bring both keys into today's form; what is unknown or has no effect stands in `source.problems`."""
    list_of_words(source)
    config = source.data.get("fsdp_config")
    if not isinstance(config, dict):
        return
    strip_prefixes(source, config)
    check_settings(source, config, lenient=lenient)
    if config and not source.data.get("fsdp") and not source.data.get("deepspeed"):
        word = "full_shard" if config.get("reshard_after_forward") is not False else "shard_grad_op"
        word = str(config.get("sharding_strategy", word)).lower().removeprefix("_")
        change(source, ("fsdp",), [word], cause=("fsdp_config",))
        source.note("migrated", ("fsdp_config",), f"`fsdp_config` alone means `fsdp: [{word}]`", severity="note")


def list_of_words(source: Source) -> None:
    """`fsdp` as a list: it may be a line of words, or a flag."""
    words = source.data.get("fsdp")
    if flag(words) is not None:
        change(source, ("fsdp",), ["full_shard"] if flag(words) else [])
    elif isinstance(words, str) and "$" not in words:
        change(source, ("fsdp",), words.replace(",", " ").split())


def strip_prefixes(source: Source, config: dict[str, Any]) -> None:
    """`fsdp_offload_params` -> `offload_params`, and `fsdp_version` up to the top level."""
    old = [key for key in config if key.startswith("fsdp_") and config[key] is not None]
    for key in old:
        rename(source, ("fsdp_config", key), ("fsdp_config", key.removeprefix("fsdp_")))
    if config.get("version") is not None:
        rename(source, ("fsdp_config", "version"), ("fsdp_version",))
    if old:
        message = "keys of `fsdp_config` no longer carry the prefix `fsdp_`"
        help = "`ftkit migrate` rewrites the file"
        source.note("migrated", ("fsdp_config", old[0]), message, help, severity="note", at_key=True)


def check_settings(source: Source, config: dict[str, Any], *, lenient: bool) -> None:
    """Refuse unknown settings and values of the wrong kind; name those without effect, once."""
    number = config.get("sharding_strategy")
    if isinstance(number, int) and number in STRATEGY_NUMBERS:
        change(source, ("fsdp_config", "sharding_strategy"), STRATEGY_NUMBERS[number])
    idle = [key for key in config if key in NO_EFFECT and config[key] is not None]
    if idle:
        message = (
            f"{', '.join(f'`{key}`' for key in idle)}: no effect; ftkit shards with FSDP2, which has no such choice"
        )
        source.note("no-effect", ("fsdp_config", idle[0]), message, severity="note", at_key=True)
    for key, value in list(config.items()):
        path = ("fsdp_config", key)
        if value is None:
            continue
        if key not in SETTINGS and key not in NO_EFFECT:
            unknown_key(source, path, (*SETTINGS, *NO_EFFECT), lenient=lenient)
            config.pop(key)
            continue
        fitted = fit(source, SETTINGS.get(key, NO_EFFECT.get(key)), value, path, lenient=lenient)
        if fitted is MISFIT or key in NO_EFFECT:
            config.pop(key)
        else:
            config[key] = list(fitted) if isinstance(fitted, tuple) else fitted
