"""Read a model's configuration and say which class of transformers it builds.

Nothing here reads weights. A folder is read as it is; a hub id goes through the hub's own cache, and with
HF_HUB_OFFLINE=1 only through that.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ftkit.errors import ModelError
from ftkit.hub import is_cached, is_lfs_pointer, why_silent
from ftkit.model.embedded import resolve_base_model

if TYPE_CHECKING:
    from ftkit.recipe.section.model import ModelSection

AUTO_CLASSES = ("AutoModelForCausalLM",)


def read_config(model: ModelSection) -> tuple[PretrainedConfig, str]:
    """Return the configuration, overrides applied, and the folder or hub id it came from.

    It is that of the unquantized net: what it says of quantized weights is taken out, see `read_stored_config`.

    Raises:
        ModelError: no configuration there, an override with an unknown name, or a `model_type` of another architecture.
    """
    config, source, _ = read_stored_config(model)
    return config, source


def read_stored_config(model: ModelSection) -> tuple[PretrainedConfig, str, Mapping[str, Any]]:
    """Return what `read_config` does, and the settings of a checkpoint that bitsandbytes has quantized, else nothing.

    Raises:
        ModelError: as `read_config`; or quantized by something that cannot be trained on.
    """
    source = resolve_base_model(model.base_model, gguf_file=model.gguf_file)
    config = load_config(source, model)
    apply_overrides(config, model.config_overrides, source)
    check_causal(config, source)
    check_model_type(model.model_type, config, source)
    settings = quantized_settings(config, source)
    if settings:
        del config.quantization_config
    return config, source, settings


def load_config(source: str, model: ModelSection) -> PretrainedConfig:
    """Read config.json of `source`, or say clearly why that cannot be done."""
    folder = Path(source).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelError(
            "the folder has no config.json", where=source, help="base_model must name a model in Hugging Face format"
        )
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1
    if looks_like_path and not folder.is_dir():
        raise ModelError(
            "no such folder",
            where=f"base_model: {source}",
            help="give a folder with config.json, or a hub id OWNER/NAME",
        )
    check_config_file(source)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            str(folder) if folder.is_dir() else source,
            revision=model.revision_of_model or "main",
            trust_remote_code=model.trust_remote_code,
            local_files_only=not folder.is_dir() and must_come_from_cache(source, model.revision_of_model),
        )
    except (OSError, ValueError) as problem:
        raise ModelError(
            f"no usable configuration: {first_line(problem)}",
            where=f"base_model: {source}",
            help="check the name; offline it must be in the hub cache already; own code needs trust_remote_code: true",
        ) from problem
    except (StrictDataclassError, TypeError, AttributeError, KeyError) as problem:
        raise ModelError(
            f"config.json holds a value of the wrong kind: {last_line(problem)}",
            where=f"base_model: {source}",
            help="mend that key in config.json, or download the model again",
        ) from problem
    check_rotary(config, source, key="rope_parameters (rope_scaling) in config.json")
    return config


def check_config_file(source: str) -> None:
    """Refuse a folder whose config.json is no mapping in JSON; other readers' words for it mislead."""
    file = Path(source).expanduser() / "config.json"
    if not file.is_file():
        return
    try:
        values = json.loads(file.read_text(encoding="utf8"))
    except ValueError as problem:
        pointer = is_lfs_pointer(file)
        raise ModelError(
            "config.json is a git-lfs pointer" if pointer else f"config.json is not JSON: {first_line(problem)}",
            where=str(file),
            help="run `git lfs pull` in that folder" if pointer else "mend it, or download the model again",
        ) from problem
    if not isinstance(values, dict):
        raise ModelError(
            f"config.json must hold a mapping, got {type(values).__name__}",
            where=str(file),
            help="mend it, or download the model again",
        )


def must_come_from_cache(source: str, revision: str | None) -> bool:
    """Whether the hub is silent and its cache has to do.

    Raises:
        ModelError: the hub is silent, and the cache does not have the model.
    """
    silent = why_silent()
    if silent is None:
        return False
    if is_cached(source, ("config.json",), revision):
        return True
    raise ModelError(
        f"no usable configuration: neither a folder nor a model that can be had from the hub now ({silent})",
        where=f"base_model: {source}",
        help="give the folder of the model, or connect once so that the hub's cache holds it; "
        "without any network there is ftkit:smollm2-135m-instruct",
    )


def apply_overrides(config: PretrainedConfig, overrides: Mapping[str, Any], source: str) -> None:
    """Set the recipe's `model_config` values on `config`.

    transformers 5 keeps the rotary settings in one mapping, `rope_parameters`; the older names go into it.

    Raises:
        ModelError: naming every override that this configuration does not have.
    """
    rotary = {"rope_theta", "rope_scaling", "rope_parameters"} & overrides.keys()
    known = [name for name in config.to_dict() if not name.startswith("_")]
    unknown = [name for name in overrides if name not in rotary and not hasattr(config, name)]
    if unknown:
        hints = {name: difflib.get_close_matches(name, known, n=1) for name in unknown}
        listed = ", ".join(f"{name} (did you mean {hint[0]}?)" if hint else name for name, hint in hints.items())
        raise ModelError(
            f"model_config sets what a {config.model_type} configuration does not have, got {listed}",
            where=source,
            help=f"known names: {', '.join(sorted(known))}",
        )
    wrong = [problem for name in sorted(overrides.keys() - rotary) if (problem := set_value(config, name, overrides))]
    if wrong:
        raise ModelError(
            f"model_config holds values of the wrong kind, got {'; '.join(wrong)}",
            where=source,
            help="write them as the model's own config.json does",
        )
    if rotary:
        try:
            config.rope_parameters = rotary_settings(config, overrides)
        except (ValueError, TypeError) as problem:
            given = "; ".join(f"{name}: {plain_value(overrides[name])}" for name in sorted(rotary))
            raise ModelError(
                f"model_config holds rotary settings of the wrong kind, got {given}",
                where=source,
                help="write them as rope_scaling: {type: linear, factor: 2.0} and rope_theta: 10000",
            ) from problem
        check_rotary(config, source, key=f"model_config: {', '.join(sorted(rotary))}")


def set_value(config: PretrainedConfig, name: str, overrides: Mapping[str, Any]) -> str | None:
    """Set one override; return what is wrong with it, if anything."""
    value = plain_value(overrides[name])
    try:
        setattr(config, name, value)
    except (StrictDataclassError, TypeError, ValueError, AttributeError) as problem:
        return f"{name}: {value} ({last_line(problem)})"
    return None


def check_rotary(config: PretrainedConfig, source: str, *, key: str) -> None:
    """Refuse rotary settings that transformers would fail on without naming them."""
    settings = getattr(config, "rope_parameters", None)
    if not isinstance(settings, Mapping):
        return
    nested = [value for value in settings.values() if isinstance(value, Mapping)]  # one mapping a kind of layer
    known = ("default", *ROPE_INIT_FUNCTIONS)
    unknown = [kind for part in (settings, *nested) if (kind := part.get("rope_type", "default")) not in known]
    if unknown:
        raise ModelError(
            f"transformers has no rotary scaling of this type, got {unknown[0]}",
            where=key,
            help=f"one of {', '.join(known)}; the model is {source}",
        )
    wrong = [
        f"{name}: {value}"
        for part in (settings, *nested)
        for name, value in part.items()
        if name in ("factor", "rope_theta") and (isinstance(value, bool) or not isinstance(value, int | float))
    ]
    if wrong:
        raise ModelError(f"rotary settings must be numbers, got {', '.join(wrong)}", where=key)
    try:
        if hasattr(config, "validate_rope"):
            config.validate_rope()
    except KeyError as problem:
        raise ModelError(
            f"rotary settings are incomplete: {problem.args[0]}", where=key, help="add the missing keys"
        ) from problem


def rotary_settings(config: PretrainedConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` with the recipe's rotary overrides, old names and new, worked in."""
    settings = dict(getattr(config, "rope_parameters", None) or {})
    for name in ("rope_scaling", "rope_parameters"):
        given = dict(plain_value(overrides.get(name)) or {})
        if "type" in given:
            given["rope_type"] = given.pop("type")
        settings.update(given)
    if "rope_theta" in overrides:
        settings["rope_theta"] = float(overrides["rope_theta"])
    return settings


def plain_value(value: Any) -> Any:
    """Turn the recipe's frozen mappings and tuples back into what config.json would hold."""
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    return [plain_value(item) for item in value] if isinstance(value, tuple | list) else value


def check_causal(config: PretrainedConfig, source: str) -> None:
    """Refuse a configuration that builds no causal language model."""
    has_own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not has_own_code:
        raise ModelError(
            f"transformers has no causal language model for model_type, got {config.model_type}", where=source
        )


def check_model_type(wanted: str | None, config: PretrainedConfig, source: str) -> None:
    """Refuse a recipe's `model_type` that names another architecture than the configuration's."""
    mapped = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    own = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM", "").rpartition(".")[2]
    accepted = {name for name in (mapped, own, config.model_type, *AUTO_CLASSES) if name}
    if wanted is not None and wanted not in accepted:
        raise ModelError(
            f"the recipe says model_type {wanted}, but the model is of architecture {mapped or own}",
            where=source,
            help=f"write model_type: {mapped or own}, or AutoModelForCausalLM, or leave it out",
        )


def quantized_settings(config: PretrainedConfig, source: str) -> Mapping[str, Any]:
    """What the configuration says of weights quantized by bitsandbytes; empty for plain ones.

    Raises:
        ModelError: they are quantized by something else.
    """
    settings = getattr(config, "quantization_config", None) or {}
    values: dict[str, Any] = dict(settings if isinstance(settings, Mapping) else settings.to_dict())
    method = getattr(values.get("quant_method", "?"), "value", values.get("quant_method", "?"))
    if values and method != "bitsandbytes":
        raise ModelError(
            f"the checkpoint is already quantized, got quant_method {method}; its weights are packed for the kernels "
            "of that library, which compute no gradients here",
            where=source,
            help="use the original checkpoint; load_in_4bit: true quantizes it while loading",
        )
    return values


def first_line(problem: Exception) -> str:
    """The first line of somebody else's message, without its full stop."""
    return str(problem).strip().splitlines()[0].rstrip(".") if str(problem).strip() else type(problem).__name__


def last_line(problem: Exception) -> str:
    """The last line of somebody else's message: of a failed validation the one that names key and value."""
    return str(problem).strip().splitlines()[-1].strip() if str(problem).strip() else type(problem).__name__
