"""A whole run whose targets are weighted by entropy."""

from __future__ import annotations

import json
import math
from pathlib import Path

from ftkit.cli.main import main
from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets: [{{path: {folder}/rows.jsonl, type: sharegpt}}]
dataset_prepared_path: {folder}/prepared
adapter: lora
lora_target_linear: true
learning_rate: 1e-2
max_steps: 2
save_strategy: no
val_set_size: 1
"""


def losses(folder: Path, name: str, *more: str) -> tuple[list[float], list[float]]:
    """Training and evaluation losses of a run."""
    assert main(["train", str(folder / "recipe.yml"), f"output_dir={folder / name}", *more]) == 0
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text(encoding="utf8").splitlines()]
    found = [[row[key] for row in rows if key in row] for key in ("loss", "eval_loss")]
    return found[0], found[1]


def test_the_keys_weigh_training_and_leave_evaluation_alone(tmp_path: Path) -> None:
    tiny_model(tmp_path / "model")
    sharegpt_rows(tmp_path / "rows.jsonl")
    (tmp_path / "recipe.yml").write_text(RECIPE.format(folder=tmp_path), encoding="utf8")
    plain, plain_evaluation = losses(tmp_path, "plain", "eval_on_start=true")
    even, even_evaluation = losses(tmp_path, "even", "use_eaft=true", "eaft_alpha=0", "eval_on_start=true")
    assert (even, even_evaluation) == (plain, plain_evaluation)
    sharp, evaluation = losses(tmp_path, "sharp", "use_eaft=true", "eaft_alpha=3", "eaft_k=2", "eval_on_start=true")
    bound = math.log(2) ** 3  # what two tokens' entropy is at most, to the power alpha
    assert 0.5 * bound * plain[0] < sharp[0] <= bound * plain[0]  # a random model hesitates nearly everywhere
    assert evaluation[0] == plain_evaluation[0]
