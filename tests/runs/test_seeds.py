"""The three recipes that started this project, byte for byte, with only model, data, steps and output overridden."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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


SHARED = {  # the seed, what is added to it, the backend it then names
    "miqu-70b-qlora-zero2.yml": ("llama", "", "zero", 2),
    "mixtral-8x7b-qlora-fsdp.yml": ("mixtral", "", "fsdp", None),
    "megaqwen-120b-qlora.yml": ("qwen2", "", "ddp", None),
    "megaqwen-120b-qlora.yml + zero3": ("qwen2", "deepspeed=deepspeed_configs/zero3.json", "zero", 3),
}
EXACT = ("max_steps=4", "lora_dropout=0", "warmup_steps=1", "learning_rate=1e-2", "loss_watchdog_threshold=")


@pytest.mark.parametrize("name", SHARED)
def test_a_seed_recipe_trains_on_two_processes_as_on_one(name: str, corpus: Path, tmp_path: Path) -> None:
    """With the backend it names, and with the losses of one process at the same global batch."""
    architecture, added, backend, stage = SHARED[name]
    recipe = corpus / "recipes" / "seeds" / name.split(" ")[0]
    tiny_model(tmp_path / "model", architecture)
    sharegpt_rows(tmp_path / "rows.jsonl", repeat=25)
    accumulation = load_recipe(recipe).training.gradient_accumulation_steps
    shared = [*overrides(tmp_path), *EXACT]
    train(recipe, tmp_path, 2, *shared, *filter(None, [added]), f"output_dir={tmp_path / 'two'}")
    one = f"gradient_accumulation_steps={2 * accumulation}"
    train(recipe, tmp_path, 1, *shared, one, f"output_dir={tmp_path / 'one'}")
    record = json.loads((tmp_path / "two" / "run.json").read_text())
    assert record["backend"]["name"] == backend
    assert record["backend"]["processes"] == 2
    for rank in record["backend"]["ranks"]:
        assert {"data", "load", "train", "save", "export"} <= rank["seconds"].keys() == rank["memory_gib"].keys()
    assert stage is None or str(stage) in str(record["settings"]["backend"]["deepspeed"])
    got, want = (losses(tmp_path / where) for where in ("two", "one"))
    assert len(got) == 4
    # the seeds' optimizer keeps its state in 8 bit, and ZeRO cuts its blocks otherwise than one process does
    assert got == pytest.approx(want, rel=1e-3 if backend == "zero" else 1e-5)
    assert want[0] != pytest.approx(want[-1], rel=1e-4), "something was learned"
    assert (tmp_path / "two" / "adapter_model.safetensors").is_file()


def train(recipe: Path, folder: Path, processes: int, *changed: str) -> None:
    """Start a run as a user does."""
    kept = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    source = Path(__file__).resolve().parents[2] / "src"
    environment = {**kept, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "ftkit.cli.main", "train", str(recipe), *changed, "--processes", str(processes)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def losses(output: Path) -> list[float]:
    """The training losses of a run, step by step."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]
