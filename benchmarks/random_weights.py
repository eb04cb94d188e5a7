"""Nets with random weights, built block by block on the device: what benchmarks and calibration run on."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from ftkit.model.plan import ModelPlan, plan_model
from ftkit.model.quantized import QuantizedLinear
from ftkit.recipe import Recipe, load_recipe

RECIPE: Mapping[str, Any] = {
    "datasets": "[{path: none.jsonl, type: completion}]",
    "adapter": "qlora",
    "load_in_4bit": "true",
    "lora_r": 16,
    "lora_alpha": 16,
    "lora_target_linear": "true",
    "learning_rate": "1e-4",
}


def planned(config: PretrainedConfig, **keys: object) -> tuple[Recipe, ModelPlan]:
    """The recipe of a QLoRA run over a model of this shape, with `keys` changed, and its plan."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        lines = "\n".join(f"{key}: {value}" for key, value in {"base_model": folder, **RECIPE, **keys}.items())
        (Path(folder) / "recipe.yml").write_text(lines + "\n", encoding="utf8")
        recipe = load_recipe(Path(folder) / "recipe.yml")
        return recipe, plan_model(recipe.model, recipe.quantization, recipe.adapter)


def fill_random(root: nn.Module, device: torch.device, *, scale: float = 0.02) -> None:
    """Put random tensors in place of the meta ones below `root`, quantized one at a time; buffers move along."""
    for module in root.modules():
        if isinstance(module, QuantizedLinear) and module.stored()[0].is_meta:
            size = (module.out_features, module.in_features)
            module.fill(torch.randn(size, device=device, dtype=torch.bfloat16) * scale)
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                value = torch.randn(parameter.shape, device=device, dtype=parameter.dtype) * scale
                module.register_parameter(name, nn.Parameter(value, requires_grad=parameter.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.device.type != device.type:
                setattr(module, name, buffer.to(device))
