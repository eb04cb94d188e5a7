"""gradient_checkpointing and save_strategy do what they say, in a whole run."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from ftkit.cli.main import main
from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets:
  - path: {folder}/rows.jsonl
    type: sharegpt
dataset_prepared_path: {folder}/prepared
output_dir: {folder}/plain
adapter: lora
lora_target_linear: true
learning_rate: 1e-2
max_steps: 2
save_strategy: no
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recompute")
    tiny_model(folder / "model")
    sharegpt_rows(folder / "rows.jsonl")
    (folder / "recipe.yml").write_text(RECIPE.format(folder=folder), encoding="utf8")
    assert main(["train", str(folder / "recipe.yml")]) == 0
    return folder


def test_without_saving_there_is_the_result_alone(plain: Path) -> None:
    names = [path.name for path in (plain / "plain").iterdir()]
    assert "adapter_model.safetensors" in names
    assert not [name for name in names if name.startswith("checkpoint")]


@pytest.mark.parametrize("kind", ["true", "offload"])
def test_recomputing_does_not_change_what_is_learned(plain: Path, kind: str) -> None:
    asked = [f"gradient_checkpointing={kind}", f"output_dir={plain / kind}"]
    assert main(["train", str(plain / "recipe.yml"), *asked]) == 0
    first, second = (load_file(plain / name / "adapter_model.safetensors") for name in ("plain", kind))
    assert all(bool((first[name] == second[name]).all()) for name in first)
