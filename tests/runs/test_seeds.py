"""The three recipes that started this project, byte for byte, with only model, data, steps and output overridden."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ftkit.cli.main import main
from ftkit.errors import RecipeError
from ftkit.recipe import load_recipe
from ftkit.run import run
from tiny import sharegpt_rows, tiny_model

SEEDS = {
    "miqu-70b-qlora-zero2.yml": "llama",
    "mixtral-8x7b-qlora-fsdp.yml": "mixtral",
    "megaqwen-120b-qlora.yml": "qwen2",
}


@pytest.fixture(scope="session", params=SEEDS.items(), ids=SEEDS)
def seed(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A seed recipe, and a folder with a tiny random model of its architecture and some rows."""
    name, architecture = request.param
    folder = tmp_path_factory.mktemp(architecture)
    tiny_model(folder / "model", architecture)
    sharegpt_rows(folder / "rows.jsonl", repeat=25)
    return corpus / "recipes" / "seeds" / name, folder


def overrides(folder: Path, *more: str) -> list[str]:
    return [
        f"base_model={folder / 'model'}",
        f"datasets.0.path={folder / 'rows.jsonl'}",
        "max_steps=3",
        f"output_dir={folder / 'out'}",
        *more,
    ]


def test_a_seed_recipe_trains_on_a_cpu(seed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_file, folder = seed
    monkeypatch.chdir(folder)  # the Mixtral recipe prepares into ./last_run_prepared
    shutil.rmtree(folder / "out", ignore_errors=True)
    assert main(["train", str(recipe_file), *overrides(folder)]) == 0
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3]
    assert (folder / "out" / "adapter_model.safetensors").is_file()
    listed = {entry["key"] for entry in json.loads((folder / "out" / "run.json").read_text())["substitutions"]}
    assert {"flash_attention", "optimizer", "wandb_project"} <= listed
    assert ("load_in_4bit" in listed) == ("mixtral" in recipe_file.name), "experts that stay unquantized are listed"
    assert ("deepspeed" in listed) == ("miqu" in recipe_file.name)
    assert ("fsdp" in listed) == ("mixtral" in recipe_file.name)


def test_strict_makes_the_substitutions_errors(seed: tuple[Path, Path]) -> None:
    recipe_file, folder = seed
    with pytest.raises(RecipeError, match="strict: true, and this machine cannot honour"):
        run(load_recipe(recipe_file, overrides(folder, "strict=true")))
