"""What a user meets when something is wrong: one message with place, fault and help, and the exit code of its kind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ftkit.cli.main import main
from ftkit.save.output import hold
from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets:
  - path: {folder}/rows.jsonl
    type: sharegpt
output_dir: {folder}/out
learning_rate: 1e-3
max_steps: 1
{more}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors")
    tiny_model(folder / "model")
    sharegpt_rows(folder / "rows.jsonl")
    return folder


def fails(folder: Path, capsys: pytest.CaptureFixture[str], *overrides: str, more: str = "") -> tuple[int, str]:
    """Run the recipe with one thing wrong; return the exit code and what stands on stderr."""
    (folder / "recipe.yml").write_text(RECIPE.format(folder=folder, more=more), encoding="utf8")
    code = main(["train", str(folder / "recipe.yml"), *overrides])
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return code, text


def test_a_misspelt_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fails(folder, capsys, more="warmup_ration: 0.1")
    assert code == 2
    assert text == (
        f"error: {folder}/recipe.yml:8:1: no key is called `warmup_ration`\nhelp: did you mean `warmup_ratio`?\n"
    )


def test_an_unknown_optimizer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fails(folder, capsys, more="optimizer: adamw_torhc")
    assert code == 2
    assert text.startswith(f"error: {folder}/recipe.yml:8:12: ")
    assert "adamw_torhc" in text
    assert "adamw_torch" in text.split("help:")[1]


def test_a_missing_recipe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(folder / "none.yml")]) == 2
    expected = f"error: {folder}/none.yml: there is no such file\nhelp: check the path of the recipe\n"
    assert capsys.readouterr().err == expected


def test_a_missing_data_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fails(folder, capsys, f"datasets.0.path={folder}/none.jsonl")
    assert code == 3
    assert f"{folder}/none.jsonl" in text
    assert "help: " in text


def test_an_empty_data_set(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty.jsonl").write_text("\n", encoding="utf8")
    code, text = fails(folder, capsys, f"datasets.0.path={folder}/empty.jsonl")
    assert code == 3
    assert f"{folder}/empty.jsonl" in text
    assert "empty" in text
    assert "help: " in text


def test_a_row_with_a_null(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = '{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}\n'
    (folder / "null.jsonl").write_text(good + good.replace('"b"', "null"), encoding="utf8")
    code, text = fails(folder, capsys, f"datasets.0.path={folder}/null.jsonl")
    assert code == 3
    assert text.startswith(f"error: {folder}/null.jsonl:2: ")
    assert "null" in text
    assert "help: " in text


def test_a_missing_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fails(folder, capsys, f"base_model={folder}/nothing")
    assert code in {3, 4}
    assert f"{folder}/nothing" in text
    assert "help: " in text


@pytest.mark.parametrize("output", ["rows.jsonl", "rows.jsonl/out", "out"])
def test_an_output_dir_is_tried_before_the_data(folder: Path, capsys: pytest.CaptureFixture[str], output: str) -> None:
    with hold(folder / "out"):  # another run's
        code, text = fails(folder, capsys, f"output_dir={folder}/{output}", f"datasets.0.path={folder}/none.jsonl")
    assert code == 6
    assert text.startswith(f"error: output_dir: {folder}/{output}: ")
    assert "help: " in text


def test_every_problem_of_a_recipe_is_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fails(folder, capsys, "learning_rate=fast", more="epochz: 3\nbf16: maybe")
    assert code == 2
    assert "command line: " in text
    assert "recipe.yml:8:1" in text
    assert "recipe.yml:9:7" in text


def test_a_broken_config_json_is_the_models_fault(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "model", folder / "broken")
    (folder / "broken" / "config.json").write_text("{", encoding="utf8")
    code, text = fails(folder, capsys, f"base_model={folder}/broken")
    assert code == 4
    assert "config.json is not JSON" in text
    assert main(["prepare", str(folder / "recipe.yml"), f"base_model={folder}/broken"]) == 4
