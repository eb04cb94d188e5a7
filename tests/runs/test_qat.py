"""A whole run of quantization-aware training: what it exports, and that it resumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ftkit.cli.main import main
from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets: [{{path: {folder}/rows.jsonl, type: sharegpt}}]
dataset_prepared_path: {folder}/prepared
learning_rate: 1e-3
max_steps: 4
save_steps: 2
qat:
  activation_dtype: int8
  weight_dtype: int4
  group_size: 32
  fake_quant_after_n_steps: 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torchao")
    folder = tmp_path_factory.mktemp("qat")
    tiny_model(folder / "model")
    sharegpt_rows(folder / "rows.jsonl")
    (folder / "recipe.yml").write_text(RECIPE.format(folder=folder), encoding="utf8")
    train(folder, "late")
    return folder


def train(folder: Path, name: str, *more: str) -> list[float]:
    """Losses of a run."""
    assert main(["train", str(folder / "recipe.yml"), f"output_dir={folder / name}", *more]) == 0
    return losses(folder, name)


def losses(folder: Path, name: str) -> list[float]:
    rows = (folder / name / "metrics.jsonl").read_text(encoding="utf8").splitlines()
    return [row["loss"] for row in map(json.loads, rows) if "loss" in row]


def test_rounding_changes_the_loss_from_its_step_on(folder: Path) -> None:
    plain, early = train(folder, "plain", "qat="), train(folder, "early", "qat.fake_quant_after_n_steps=0")
    late = losses(folder, "late")
    assert late[:3] == plain[:3]
    assert late[3] != plain[3]
    assert early[0] != plain[0]


def test_a_resumed_run_rounds_as_the_uninterrupted_one(folder: Path) -> None:
    train(folder, "resumed", f"resume_from_checkpoint={folder / 'late' / 'checkpoint-2'}")
    whole, resumed = (load_file(folder / name / "model.safetensors") for name in ("late", "resumed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_the_exported_model_is_transformers_own_and_unrounded(folder: Path) -> None:
    net, loading = AutoModelForCausalLM.from_pretrained(folder / "late", output_loading_info=True)
    assert not any(loading.values())
    assert json.loads((folder / "late" / "config.json").read_text(encoding="utf8")).get("quantization_config") is None
    weight = net.model.layers[0].mlp.up_proj.weight
    assert len(weight[0, :32].unique()) > 16  # more values than one group of int4 has
