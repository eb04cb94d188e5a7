"""Ctrl-C and SIGTERM end a run with one line that says where it can go on, if it can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftkit.cli.main import guarded
from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets:
  - path: {folder}/rows.jsonl
    type: sharegpt
output_dir: {folder}/out
adapter: lora
lora_target_linear: true
learning_rate: 1e-3
max_steps: 100000
save_steps: {every}
save_total_limit: 1
"""


def stopped(folder: Path, number: signal.Signals, *, every: int) -> tuple[int, str]:
    """Start a run without end, send the signal once its fifth step is logged, and return what came of it."""
    tiny_model(folder / "model")
    sharegpt_rows(folder / "rows.jsonl")
    (folder / "recipe.yml").write_text(RECIPE.format(folder=folder, every=every), encoding="utf8")
    command = [sys.executable, "-m", "ftkit.train", str(folder / "recipe.yml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    metrics = folder / "out" / "metrics.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        for _ in process.stdout:
            if metrics.is_file() and metrics.read_text(encoding="utf8").count("\n") >= 5:
                break
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    return process.returncode, errors.decode().strip().splitlines()[-1]


def test_ctrl_c_names_the_checkpoint(tmp_path: Path) -> None:
    code, text = stopped(tmp_path, signal.SIGINT, every=2)
    assert code == 130
    assert text.startswith(f"interrupted; resume_from_checkpoint: {tmp_path}/out/checkpoint-")
    assert text.endswith(" goes on from there")
    assert not (tmp_path / "out" / ".lock").exists()


def test_sigterm_promises_no_checkpoint_where_there_is_none(tmp_path: Path) -> None:
    assert stopped(tmp_path, signal.SIGTERM, every=10**6) == (143, "terminated; no checkpoint was written yet")


def test_an_interruption_of_another_command_is_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        raise KeyboardInterrupt

    assert guarded(run) == 130
    assert capsys.readouterr().err == "interrupted\n"
