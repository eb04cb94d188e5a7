"""`ftkit train`'s command line. What its processes do is told in tests/parallel/test_processes.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ftkit.cli.main import main
from ftkit.parallel import processes
from ftkit.parallel.processes import Ending, Layout

TEXT = "base_model: nowhere\ndatasets: [{path: rows.jsonl, type: sharegpt}]\noutput_dir: out\nlearning_rate: 1e-4\n"


@pytest.fixture
def recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    file = tmp_path / "recipe.yml"
    file.write_text(TEXT, encoding="utf8")
    return file


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Layout, list[str]]]:
    """What would be started, on a machine with four GPUs."""
    calls: list[tuple[Layout, list[str]]] = []

    def run(layout: Layout, command: list[str]) -> Ending:
        calls.append((layout, command))
        return Ending(3, "error: rank 1 met something")

    monkeypatch.setattr(processes, "run_processes", run)
    monkeypatch.setattr(processes, "num_gpus", lambda: 4)
    return calls


@pytest.mark.parametrize(
    ("words", "layout"),
    [
        ([], Layout(4)),
        (["--processes", "2"], Layout(2)),
        (["--num_processes=3"], Layout(3)),
        (["--nnodes", "2", "--node-rank", "1", "--rdzv", "node0:29500"], Layout(4, 2, 1, "node0:29500")),
        (["--nnodes=2", "--rdzv=node0:29500", "--rdzv-timeout=60"], Layout(4, 2, None, "node0:29500", 60)),
    ],
)
def test_the_options_say_what_is_started(
    recipe_file: Path, started: list[tuple[Layout, list[str]]], words: list[str], layout: Layout
) -> None:
    assert main(["train", str(recipe_file), "seed=7", *words, "logging_steps=2"]) == 3
    assert started == [(layout, ["-m", "ftkit.train", str(recipe_file), "seed=7", "logging_steps=2"])]


def test_the_ending_is_said_and_is_the_exit_code(
    recipe_file: Path, started: list[tuple[Layout, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(recipe_file)]) == 3
    assert capsys.readouterr().err == "error: rank 1 met something\n"


def test_one_process_is_this_one(
    recipe_file: Path, started: list[tuple[Layout, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """It gets as far as the model that is not there."""
    for words in (["train", "--processes", "1"], ["train", "--here"]):
        assert main([*words, str(recipe_file)]) == 4
        assert "nowhere" in capsys.readouterr().err
    assert started == []


def test_what_is_wrong_with_a_recipe_is_said_before_anything_starts(
    recipe_file: Path, started: list[tuple[Layout, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(recipe_file), "--processes", "2", "learning_rat=1"]) == 2
    assert "did you mean `learning_rate`?" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize("words", [["--processes", "2"], ["--nnodes", "2"], ["--rdzv", "a:1"], ["--node-rank", "0"]])
def test_a_rank_of_a_launcher_starts_no_others(
    recipe_file: Path,
    started: list[tuple[Layout, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", str(recipe_file), *words]) == 2
    assert capsys.readouterr().err.startswith("error: command line: a launcher has started this process; --processes")
    assert started == []


@pytest.mark.parametrize("words", [["--processes", "0"], ["--nnodes", "two"]])
def test_a_number_that_is_none_is_refused(
    recipe_file: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["train", str(recipe_file), *words])
    assert caught.value.code == 2
    assert f"must be a whole number from 1, got {words[1]}" in capsys.readouterr().err


def test_help_tells_of_processes_and_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert "--nnodes 2 --node-rank 0 --rdzv node0:29500" in text
    assert "--here" not in text


def test_ranks_do_not_see_the_working_directory_where_ftkit_does_not(
    recipe_file: Path, started: list[tuple[Layout, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in {"", str(Path.cwd())}])
    main(["train", str(recipe_file)])
    assert os.environ["PYTHONSAFEPATH"] == "1"
