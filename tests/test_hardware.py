from __future__ import annotations

from pathlib import Path

import pytest

from ftkit.errors import RecipeError
from ftkit.hardware import Machine, fit_to_machine
from ftkit.recipe import Recipe, load_recipe

CPU = Machine("cpu", bf16=False)
GPU = Machine("cuda", bf16=True)
TEXT = """
base_model: some/model
datasets: [{path: rows.jsonl, type: sharegpt}]
learning_rate: 2e-4
load_in_4bit: true
adapter: qlora
lora_target_linear: true
optimizer: paged_adamw_8bit
bf16: true
tf32: true
flash_attention: true
deepspeed: deepspeed_configs/zero2.json
wandb_project: mine
"""


def recipe(tmp_path: Path, *overrides: str) -> Recipe:
    file = tmp_path / "recipe.yml"
    file.write_text(TEXT, encoding="utf8")
    return load_recipe(file, overrides)


def test_a_cpu_replaces_what_it_lacks_and_lists_every_replacement(tmp_path: Path) -> None:
    fitted, substitutions = fit_to_machine(recipe(tmp_path), CPU)
    assert [s.key for s in substitutions] == [
        "flash_attention", "bf16", "tf32", "optimizer", "deepspeed", "wandb_project",
    ]  # fmt: skip
    assert fitted.model.attention == "sdpa"
    assert fitted.training.bf16 is False
    assert fitted.optimization.optimizer == "adamw_bnb_8bit"
    assert fitted.backend.deepspeed is None
    assert str(substitutions[3]) == "optimizer: paged_adamw_8bit -> adamw_bnb_8bit (paging moves memory off a GPU)"


def test_a_gpu_keeps_what_it_has(tmp_path: Path) -> None:
    given = recipe(tmp_path, "deepspeed=", "wandb_project=", "flash_attention=")
    fitted, substitutions = fit_to_machine(given, GPU)
    assert substitutions == ()
    assert fitted == given


def test_a_kernel_that_is_not_there_yet_is_listed_on_a_gpu_too(tmp_path: Path) -> None:
    given = recipe(
        tmp_path, "deepspeed=", "wandb_project=", "flash_attention=", "attn_implementation=flash_attention_2"
    )
    fitted, substitutions = fit_to_machine(given, GPU)
    assert [(s.key, s.asked) for s in substitutions] == [("attn_implementation", "flash_attention_2")]
    assert fitted.model.attention == "sdpa"


def test_the_recipe_given_is_left_alone(tmp_path: Path) -> None:
    given = recipe(tmp_path)
    fit_to_machine(given, CPU)
    assert given == recipe(tmp_path)


def test_strict_makes_every_replacement_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        fit_to_machine(recipe(tmp_path, "strict=true"), CPU)
    message = str(caught.value)
    assert message.startswith("strict: true, and this machine cannot honour\n  flash_attention: true -> torch's scaled")
    assert message.count("\n  ") == 6
    assert message.endswith("help: change these keys, run on a machine that has them, or set strict: false")


def test_what_lies_in_host_memory_is_not_moved_there(tmp_path: Path) -> None:
    given = recipe(tmp_path, "gradient_checkpointing=offload")
    fitted, substitutions = fit_to_machine(given, CPU)
    assert fitted.training.gradient_checkpointing is True
    assert ("gradient_checkpointing", "offload", "true") in [(s.key, s.asked, s.used) for s in substitutions]
    fitted, _ = fit_to_machine(given, GPU)
    assert fitted.training.gradient_checkpointing == "offload"
