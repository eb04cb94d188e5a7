"""Whole recipes on several processes and nodes, started as a user would."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets:
  - path: {folder}/rows.jsonl
    type: sharegpt
output_dir: {folder}/out
adapter: lora
lora_target_linear: true
learning_rate: 1e-3
sequence_len: 256
num_epochs: 1
logging_steps: 1
save_strategy: "no"
"""
FTKIT = [sys.executable, "-m", "ftkit.cli.main"]
SBATCH = Path(__file__).resolve().parents[2] / "examples" / "slurm" / "train.sbatch"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    tiny_model(tmp_path / "model")
    sharegpt_rows(tmp_path / "rows.jsonl")
    (tmp_path / "recipe.yml").write_text(RECIPE.format(folder=tmp_path), encoding="utf8")
    return tmp_path / "recipe.yml"


def environment(root: Path) -> dict[str, str]:
    path = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    return {name: value for name, value in path.items() if name not in {"RANK", "WORLD_SIZE"}}


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text(encoding="utf8").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_a_row_that_is_bad_is_said_on_two_processes_as_on_one(recipe_file: Path, root: Path) -> None:
    with (recipe_file.parent / "rows.jsonl").open("a", encoding="utf8") as rows:
        rows.write('{"conversations": 7}\n')
    said = {}
    for number in ("1", "2"):
        command = [*FTKIT, "train", str(recipe_file), "--processes", number]
        done = subprocess.run(
            command, env=environment(root), capture_output=True, text=True, check=False, timeout=120, cwd=root
        )
        assert done.returncode == 3, done.stderr
        said[number] = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert said["2"][:-1] == said["1"]
    assert said["1"][0].startswith(f"error: {recipe_file.parent}/rows.jsonl:5: ")
    assert said["2"][-1].startswith("(this was rank ")


def test_two_nodes_train_one_recipe(recipe_file: Path, root: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    words = [*FTKIT, "train", str(recipe_file), "--processes", "1", "--nnodes", "2", "--rdzv", address]
    nodes = [
        subprocess.Popen(
            [*words, "--node-rank", rank],
            env=environment(root),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    said = [node.communicate(timeout=180) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "steps    2 of 1 x 1 x 2 documents" in said[0][0]
    assert said[1][0] == ""  # rank 1 leaves the talk to rank 0
    assert len(losses(recipe_file.parent)) == 2
    assert (recipe_file.parent / "out" / "adapter_model.safetensors").is_file()


STAND_INS = {
    "scontrol": "echo localhost; sleep 0.2; echo elsewhere",
    # Both tasks on this machine, each told which node it is; the worst exit code counts, as srun's does.
    "srun": """
shift  # --wait
for node in 0 1; do
    SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=$node SLURM_PROCID=$node SLURM_LOCALID=0 "$@" & pids="${pids:-} $!"
done
code=0
for pid in $pids; do wait "$pid" || code=$?; done
exit $code""",
    "ftkit": f'exec {sys.executable} -m ftkit.cli.main "$@"',
}


def test_the_slurm_script_runs_a_recipe_on_two_nodes(recipe_file: Path, root: Path, tmp_path: Path) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, text in STAND_INS.items():
        (bin / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf8")
        (bin / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_NNODES": "2", "SLURM_NTASKS": "2"}
    variables = {**environment(root), **slurm, "PATH": f"{bin}:{os.environ['PATH']}"}
    command = ["bash", str(SBATCH), str(recipe_file), "max_steps=1"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    assert len(losses(recipe_file.parent)) == 1


def test_the_slurm_script_asks_for_a_recipe() -> None:
    done = subprocess.run(["bash", str(SBATCH)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: sbatch ")
