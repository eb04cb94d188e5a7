from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftkit.cli.main import main
from tiny import byte_tokenizer, sharegpt_rows


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    byte_tokenizer(tmp_path / "tokenizer")
    sharegpt_rows(tmp_path / "rows.jsonl", repeat=2)
    text = f"""
base_model: {tmp_path / "tokenizer"}
datasets: [{{path: {tmp_path / "rows.jsonl"}, type: sharegpt}}]
chat_template: chatml
sequence_len: 256
sample_packing: true
dataset_prepared_path: {tmp_path / "cache"}
output_dir: {tmp_path / "out"}
"""
    (tmp_path / "recipe.yml").write_text(text, encoding="utf8")
    return tmp_path / "recipe.yml"


def add_row(file: Path, row: object) -> None:
    with (file.parent / "rows.jsonl").open("a", encoding="utf8") as rows:
        rows.write(json.dumps(row) + "\n")


BROKEN = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": None}]}


def test_the_report_says_what_is_trained_and_hit_or_miss(recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", str(recipe_file)]) == 0
    first = capsys.readouterr().out
    assert "8 read, 8 kept" in first
    assert "in 100% of the documents" in first
    assert "cache miss: nothing like it was prepared before, in " in first
    assert main(["preprocess", str(recipe_file)]) == 0
    assert "cache hit, in " in capsys.readouterr().out


def test_json_holds_the_report_and_nothing_else(recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", str(recipe_file), "--json", "sequence_len=128"]) == 0
    made = json.loads(capsys.readouterr().out)
    (account,) = made["train"]["sets"]
    assert (account["rows"], account["documents"], account["ended"], account["dropped"]) == (8, 8, 8, {})
    assert made["train"]["cache"].startswith("miss")
    assert made["num_steps"] == made["packs"]


def test_rows_left_out_lie_beside_the_cache(recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_row(recipe_file, BROKEN)
    assert main(["prepare", str(recipe_file)]) == 3
    assert f"error: {recipe_file.parent}/rows.jsonl:9: turn 2: 'value' must be text" in capsys.readouterr().err
    for _ in range(2):  # from a miss and from a hit
        assert main(["prepare", str(recipe_file), "--json", "bad_rows=skip"]) == 0
        made = json.loads(capsys.readouterr().out)
        assert made["train"]["sets"][0]["dropped"] == {"bad row": 1}
        (line,) = (Path(made["train"]["folder"]) / "rejected.jsonl").read_text(encoding="utf8").splitlines()
        assert json.loads(line)["where"] == f"{recipe_file.parent}/rows.jsonl:9"


def test_exceptions_are_allowed_by_name(recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = "{{ '<|im_end|>' if messages | length > 3 }}"  # as the rows are not
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}" + end + "\n{% endfor %}"
    words = ["prepare", str(recipe_file), "chat_template=jinja", f"chat_template_jinja={json.dumps(template)}"]
    assert main(words) == 3
    assert "allow: [other_prompt]" in capsys.readouterr().err
    assert main([*words, "--allow", "other_prompt"]) == 3
    assert "allow: [missing_end]" in capsys.readouterr().err
    assert main([*words, "--allow", "other_prompt", "--allow", "missing_end"]) == 0
    out = capsys.readouterr().out
    assert "8 other_prompt, 8 missing_end" in out
    assert "in 0 of 8 documents" in out
    assert main([*words, "--allow", "missing_ends"]) == 2
    assert "missing_end" in capsys.readouterr().err


def test_preview_shows_rows_report_and_packs(recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", str(recipe_file), "-n", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("<|im_start|>assistant") == 2
    assert "The sky is blue.<|im_end|>" in out
    assert "Rows of the first step: 1, of at most 256 tokens" in out


def test_preview_writes_a_page(recipe_file: Path) -> None:
    page = recipe_file.parent / "out.html"
    assert main(["preview", str(recipe_file), "--html", str(page), "sample_packing=false"]) == 0
    assert "im_start" in page.read_text(encoding="utf8")
