from __future__ import annotations

from pathlib import Path

import pytest

from ftkit.cli.main import main

OLD = "# mine\nbase_model: org/model\ndatasets:\n  - path: rows.jsonl\n    type: alpaca\nload_4bit: false  # no\n"
NEW = OLD.replace("load_4bit", "load_in_4bit")


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "recipe.yml"
    file.write_text(OLD)
    return file


def test_the_change_is_shown_and_the_file_left_alone(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "recipe.yml"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["--- recipe.yml", "+++ recipe.yml (migrated)"]
    assert shown[-2:] == ["-load_4bit: false  # no", "+load_in_4bit: false  # no"]
    assert recipe.read_text() == OLD


def test_write_changes_the_file_once(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "recipe.yml", "--write"]) == 0
    assert recipe.read_text() == NEW
    note = "note: recipe.yml:6:1: `load_4bit` is now called `load_in_4bit`\n"
    assert capsys.readouterr().err == f"{note}recipe.yml: migrated\n"
    assert main(["migrate", "--write", "recipe.yml"]) == 0
    assert recipe.read_text() == NEW
    assert capsys.readouterr().err == "recipe.yml: nothing to migrate\n"


def test_a_file_that_is_no_yaml_is_an_error(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text("a: [\n")
    assert main(["migrate", "recipe.yml"]) == 2
    assert capsys.readouterr().err.startswith("recipe.yml:2:1: this is not YAML: ")
    assert main(["migrate", "nowhere.yml"]) == 2
    assert capsys.readouterr().err == "error: nowhere.yml: there is no such file\nhelp: check the path of the recipe\n"


def test_what_a_run_will_do_otherwise_is_said(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(OLD + "optimizer: adamw_torch_8bit\n")
    main(["migrate", "recipe.yml"])
    warning = "warning: recipe.yml:7:1: optimizer adamw_torch_8bit is adamw_bnb_8bit here: bitsandbytes' 8-bit states"
    assert warning in capsys.readouterr().err


def test_a_file_that_cannot_be_decoded_is_left_alone(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = OLD.replace("mine", "m\xefne").encode("latin-1")
    recipe.write_bytes(content)
    for words in (["migrate", "recipe.yml"], ["migrate", "recipe.yml", "--write"]):
        assert main(words) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("recipe.yml:1:1: the file is not UTF-8, got byte 0xef")
    assert recipe.read_bytes() == content


def test_files_that_cannot_be_read_do_not_hold_up_the_others(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "nowhere.yml", "recipe.yml", "--write"]) == 2
    assert recipe.read_text() == NEW
    said = capsys.readouterr().err
    assert said.startswith("error: nowhere.yml: there is no such file\n")
    assert said.endswith("recipe.yml: migrated\n")


def test_a_file_that_cannot_be_written_is_named(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, content: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert main(["migrate", "recipe.yml", "--write"]) == 2
    said = "error: recipe.yml: the file cannot be written (Permission denied)\nhelp: allow writing to the file, "
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("old", ["batch_size: 3\nmicro_batch_size: 2\n", "epochs: 3\nnum_epochs: 2\n"])
def test_what_is_old_and_cannot_be_rewritten_is_named(
    recipe: Path, capsys: pytest.CaptureFixture[str], old: str
) -> None:
    recipe.write_text(NEW + old)
    assert main(["migrate", "--write", "recipe.yml"]) == 2
    assert capsys.readouterr().err.startswith(
        f"recipe.yml:7:{1 + 12 * old.startswith('batch')}: `{old.split(':')[0]}` "
    )
    recipe.write_text(OLD + old)
    assert main(["migrate", "--write", "recipe.yml"]) == 2
    assert capsys.readouterr().err.endswith("recipe.yml: migrated, except for what is named above\n")
    assert recipe.read_text() == NEW + old
