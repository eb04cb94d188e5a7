"""Read a model's configuration and say which class of transformers it builds.

Nothing here reads weights. A folder is read as it is; a hub id goes through the hub's own cache, and with
HF_HUB_OFFLINE=1 only through that.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ftkit.errors import ModelError
from ftkit.model.embedded import resolve_base_model

if TYPE_CHECKING:
    from ftkit.recipe.section.model import ModelSection

AUTO_CLASSES = ("AutoModelForCausalLM",)


def read_config(model: ModelSection) -> tuple[PretrainedConfig, str]:
    """Return the configuration, overrides applied, and the folder or hub id it came from.

    Raises:
        ModelError: no configuration there, an override with an unknown name, or a `model_type` of another architecture.
    """
    source = resolve_base_model(model.base_model)
    config = load_config(source, model)
    apply_overrides(config, model.config_overrides, source)
    check_causal(config, source)
    check_model_type(model.model_type, config, source)
    refuse_quantized(config, source)
    return config, source


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
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            str(folder) if folder.is_dir() else source,
            revision=model.revision_of_model or "main",
            trust_remote_code=model.trust_remote_code,
        )
    except (OSError, ValueError) as problem:
        raise ModelError(
            f"no usable configuration: {first_line(problem)}",
            where=f"base_model: {source}",
            help="check the name; offline it must be in the hub cache already; own code needs trust_remote_code: true",
        ) from problem
    return config


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
    for name in sorted(overrides.keys() - rotary):
        setattr(config, name, plain_value(overrides[name]))
    if rotary:
        config.rope_parameters = rotary_settings(config, overrides)


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


def refuse_quantized(config: PretrainedConfig, source: str) -> None:
    """Refuse checkpoints that hold quantized weights; training needs the plain ones."""
    settings = getattr(config, "quantization_config", None)
    if settings:
        method = (
            settings.get("quant_method", "?") if isinstance(settings, dict) else getattr(settings, "quant_method", "?")
        )
        raise ModelError(
            f"the checkpoint is already quantized, got quant_method {getattr(method, 'value', method)}",
            where=source,
            help="use the original checkpoint; load_in_4bit: true quantizes it while loading",
        )


def first_line(problem: Exception) -> str:
    """The first line of somebody else's message, without its full stop."""
    return str(problem).strip().splitlines()[0].rstrip(".") if str(problem).strip() else type(problem).__name__
