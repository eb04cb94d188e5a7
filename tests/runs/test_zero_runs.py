"""Whole recipes with DeepSpeed on two processes, started as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets: [{{path: {folder}/rows.jsonl, type: sharegpt}}]
dataset_prepared_path: {folder}/prepared
adapter: qlora
load_in_4bit: true
lora_target_linear: true
lora_dropout: 0.0
learning_rate: 1e-2
sequence_len: 128
sample_packing: true
val_set_size: 0.2
micro_batch_size: 1
gradient_checkpointing: true
max_steps: 4
save_steps: 2
sample_prompts: ["What colour is the sky?"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zero-runs")
    tiny_model(folder / "model")
    sharegpt_rows(folder / "rows.jsonl", repeat=6)
    (folder / "recipe.yml").write_text(RECIPE.format(folder=folder), encoding="utf8")
    return folder


def train(root: Path, recipe: Path, processes: int, *overrides: str) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    variables |= {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ftkit.cli.main", "train", str(recipe), "--processes", str(processes), *overrides]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, timeout=300, cwd=recipe.parent
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "FutureWarning" not in done.stderr  # DeepSpeed's, at every step


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text(encoding="utf8").splitlines()]


def values(output: Path, key: str) -> list[float]:
    return [line[key] for line in lines(output) if key in line]


def test_stage_3_is_one_process_spread_over_two_and_resumes(folder: Path, root: Path) -> None:
    recipe, zero = folder / "recipe.yml", f"deepspeed={root / 'deepspeed_configs/zero3.json'}"
    outputs = {name: folder / name for name in ("one", "two", "resumed")}
    train(root, recipe, 1, "gradient_accumulation_steps=4", f"output_dir={outputs['one']}")
    two = ("gradient_accumulation_steps=2", zero)
    train(root, recipe, 2, *two, f"output_dir={outputs['two']}")
    checkpoint = outputs["two"] / "checkpoint-2"
    train(root, recipe, 2, *two, f"output_dir={outputs['resumed']}", f"resume_from_checkpoint={checkpoint}")
    for key in ("loss", "grad_norm", "eval_loss"):
        assert values(outputs["two"], key) == pytest.approx(values(outputs["one"], key), rel=1e-5)
    assert values(outputs["resumed"], "loss") == values(outputs["two"], "loss")[2:]
    one, spread, resumed = (load_file(output / "adapter_model.safetensors") for output in outputs.values())
    assert one.keys() == spread.keys()
    for name, tensor in one.items():
        assert torch.allclose(spread[name], tensor, rtol=1e-3, atol=1e-5), name
        assert torch.equal(resumed[name], spread[name]), name
    record = json.loads((outputs["two"] / "run.json").read_text(encoding="utf8"))
    assert record["model"]["trainable"] == sum(tensor.numel() for tensor in one.values())


@pytest.mark.slow
def test_the_seed_recipe_of_zero_2_runs_with_it(corpus: Path, folder: Path, root: Path) -> None:
    seed, out = corpus / "recipes" / "seeds" / "miqu-70b-qlora-zero2.yml", folder / "seed"
    data = (f"base_model={folder / 'model'}", f"datasets.0.path={folder / 'rows.jsonl'}")
    train(root, seed, 2, *data, "max_steps=3", f"output_dir={out}", f"dataset_prepared_path={folder / 'prepared'}")
    assert len(values(out, "loss")) == 3
    listed = {entry["key"] for entry in json.loads((out / "run.json").read_text(encoding="utf8"))["substitutions"]}
    assert "deepspeed" not in listed
    assert all(tensor.any() for tensor in load_file(out / "adapter_model.safetensors").values())
