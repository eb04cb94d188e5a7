"""Keys of the recipe language that this version of ftkit does not act on yet.

A key that would change what is learned is refused; one that concerns speed, memory or who hears of the run is listed as
not honoured, like a key the machine lacks. A key in neither table is read somewhere; a test sees to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ftkit.errors import RecipeError
from ftkit.recipe import Recipe
from ftkit.recipe.section.base import Section

# key -> what is done instead
LISTED: Mapping[str, str] = MappingProxyType(
    {
        "fp8": "products in the precision of the weights",
        "use_wandb": "metrics.jsonl and loss.png",
        "wandb_project": "metrics.jsonl and loss.png",
        "use_tensorboard": "metrics.jsonl and loss.png",
        "mlflow_experiment_name": "metrics.jsonl and loss.png",
        "mlflow_tracking_uri": "metrics.jsonl and loss.png",
        "use_comet": "metrics.jsonl and loss.png",
        "comet_project_name": "metrics.jsonl and loss.png",
        "trackio_project_name": "metrics.jsonl and loss.png",
        "eval_table_size": "no table; sample_prompts shows answers",
        "dataset_processes": "one process reads rows, all cores tokenize them",
        "save_only_model": "checkpoints hold the optimizer state too",
        "save_safetensors": "safetensors",
        "tokenizer_use_fast": "the fast tokenizer",
        "tokenizer_legacy": "as the tokenizer's folder says",
        "debug": "the usual output",
        "local_rank": "the launcher's own",
    }
)
REFUSED = frozenset(
    {
        "load_best_model_at_end",
        "lora_target_parameters",
        "model_quantization_config",
        "neftune_noise_alpha",
    }
)
REFUSED_OF_DATASETS: frozenset[str] = frozenset()
# Keys that say more about one of the above, and mean nothing without it.
COMPANIONS: Mapping[str, str] = MappingProxyType(
    {
        "model_quantization_config_kwargs": "model_quantization_config",
        "metric_for_best_model": "load_best_model_at_end",
        "greater_is_better": "load_best_model_at_end",
        "base_model_config": "base_model",
        "allow_unquantized_experts": "load_in_4bit",
        **dict.fromkeys(
            ("wandb_entity", "wandb_name", "wandb_run_id", "wandb_watch", "wandb_log_model", "wandb_mode"),
            "wandb_project",
        ),
        **dict.fromkeys(("mlflow_run_name", "hf_mlflow_log_artifacts"), "mlflow_experiment_name"),
        **dict.fromkeys(
            (
                "comet_api_key",
                "comet_workspace",
                "comet_experiment_key",
                "comet_mode",
                "comet_online",
                "comet_experiment_config",
            ),
            "comet_project_name",
        ),
        **dict.fromkeys(("trackio_run_name", "trackio_space_id"), "trackio_project_name"),
    }
)


def refuse_unserved(recipe: Recipe) -> None:
    """Raise one error naming every given key that would change what is learned and is not served yet."""
    found = [f"{key}: {value}" for key, value in given(recipe) if key in REFUSED]
    for name in ("datasets", "test_datasets"):
        for index, entry in enumerate(getattr(recipe.data, name)):
            spoken = given_in(entry)
            found += [f"{name}.{index}.{key}: {value}" for key, value in spoken if key in REFUSED_OF_DATASETS]
    if found:
        raise RecipeError(
            "this version of ftkit does not serve these keys yet\n  " + "\n  ".join(found),
            where=recipe.file,
            help="take them out, or wait for a later version; nothing is ever ignored silently",
        )


def listed(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Yield (key, value, what is done instead) for every given key that is listed."""
    for key, value in given(recipe):
        if key in LISTED:
            yield key, value, LISTED[key]


def given(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the keys, with their value in words, that say something else than their default."""
    for section in recipe.sections().values():
        yield from given_in(section)


def given_in(section: Section) -> Iterator[tuple[str, str]]:
    """The same for one section."""
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if value and value != info.get_default(call_default_factory=True):
            yield info.alias or name, in_words(value)
        elif name == "save_safetensors" and value is False:
            yield name, "false"


def in_words(value: Any) -> str:
    """A value in one short line, as YAML would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "a mapping" if isinstance(value, Mapping | Section) else str(value)
