"""What a recipe is, in a few plain facts, for `ftkit check --json` and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftkit.recipe.deepspeed import deepspeed_config
from ftkit.recipe.recipe import Recipe
from ftkit.recipe.section.frozen import thaw


def describe(recipe: Recipe) -> dict[str, Any]:
    """Return the facts of a recipe as plain JSON values."""
    training, data = recipe.training, recipe.data
    return {
        "base_model": recipe.model.base_model,
        "model_type": recipe.model.model_type,
        "finetune": finetune(recipe),
        "quantization": quantization(recipe),
        "backend": backend(recipe),
        "datasets": [{"path": entry.path, "type": thaw(entry.type)} for entry in data.datasets],
        "val_set_size": data.val_set_size,
        "sequence_len": data.sequence_len,
        "sample_packing": data.sample_packing,
        "micro_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "num_epochs": training.num_epochs,
        "max_steps": training.max_steps,
        "optimizer": recipe.optimization.optimizer,
        "learning_rate": recipe.optimization.learning_rate,
        "lr_scheduler": recipe.optimization.lr_scheduler,
        "output_dir": recipe.saving.output_dir,
    }


def finetune(recipe: Recipe) -> str:
    """`full`, or the adapter's name."""
    return recipe.adapter.adapter or "full"


def quantization(recipe: Recipe) -> str | None:
    """How the frozen base is stored: nf4, fp4, int8, hqq4 and the like, or None for floats."""
    stored = recipe.adapter.stored(recipe.quantization)
    if stored.quant_method == "hqq":
        return f"hqq{stored.hqq_nbits}"
    if stored.load_in_4bit:
        return stored.bnb_4bit_quant_type
    return "int8" if stored.load_in_8bit else None


def backend(recipe: Recipe) -> str:
    """The backend that the recipe names: `zero1` ... `zero3`, `fsdp`, or `ddp` where it names none."""
    chosen = recipe.backend.deepspeed
    if chosen:
        return deepspeed_stage(chosen, recipe.file)
    return "fsdp" if recipe.backend.fsdp or recipe.backend.fsdp_config else "ddp"


def deepspeed_stage(chosen: str | Mapping[str, Any], recipe_file: str) -> str:
    """`zero2` and the like; `deepspeed` where the configuration is not at hand to look into."""
    try:
        config = deepspeed_config(chosen, recipe_file)
    except (FileNotFoundError, ValueError):
        return "deepspeed"
    settings = config.get("zero_optimization", {})
    stage = settings.get("stage") if isinstance(settings, Mapping) else None
    return "deepspeed" if stage is None else f"zero{stage}"
