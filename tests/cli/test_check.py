"""`ftkit check`: what people and programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftkit.cli.main import main

SOUND = "base_model: org/model\ndatasets:\n  - path: rows.jsonl\n    type: alpaca\nlearning_rate: 2e-4\n"
BROKEN = SOUND + "lerning_rate: 1e-4\nbf16: true\nfp16: true\nsample_packing: flase\n"
SHOWN = """\
error[unknown-key]: no key is called `lerning_rate`
 --> broken.yml:6:1
  |
5 | learning_rate: 2e-4
6 | lerning_rate: 1e-4
  | ^^^^^^^^^^^^
help: did you mean `learning_rate`?

error[bf16-and-fp16]: bf16 and fp16 cannot both be true
 --> broken.yml:8:7
  |
7 | bf16: true
8 | fp16: true
  |       ^^^^
help: keep bf16 on Ampere or newer, fp16 on older GPUs

error[type]: `sample_packing` must be true or false, got flase
 --> broken.yml:9:17
  |
8 | fp16: true
9 | sample_packing: flase
  |                 ^^^^^

2 recipes: 1 sound, 1 with errors (3 errors)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("sound.yml").write_text(SOUND)
    Path("broken.yml").write_text(BROKEN)
    return tmp_path


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["check", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_all_problems_of_all_files_are_shown_with_place_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "sound.yml", "broken.yml"]) == 2
    assert capsys.readouterr().out == SHOWN
    assert main(["check", "sound.yml"]) == 0
    assert capsys.readouterr().out == "1 recipe: 1 sound\n"


def test_json_is_a_list_with_an_item_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, [sound, broken] = as_json(capsys, "sound.yml", "broken.yml")
    assert code == 2
    assert (sound["file"], sound["ok"], sound["problems"]) == ("sound.yml", True, [])
    assert sound["recipe"]["learning_rate"] == 2e-4
    assert sound["recipe"]["keys"]["learning_rate"] == 2e-4
    assert (broken["file"], broken["ok"], broken["recipe"]) == ("broken.yml", False, None)
    assert broken["problems"][0] == {
        "severity": "error",
        "line": 6,
        "column": 1,
        "key": "lerning_rate",
        "code": "unknown-key",
        "message": "no key is called `lerning_rate`",
        "help": "did you mean `learning_rate`?",
    }


def test_the_three_first_recipes_pass_as_they_are_and_describe_themselves(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = corpus / "recipes" / "seeds"
    names = ("megaqwen-120b-qlora.yml", "miqu-70b-qlora-zero2.yml", "mixtral-8x7b-qlora-fsdp.yml")
    code, items = as_json(capsys, *(str(seeds / name) for name in names))
    assert code == 0
    qwen, miqu, mixtral = (item["recipe"] for item in items)
    assert not [p for item in items for p in item["problems"] if p["severity"] != "note"]
    assert [one["backend"] for one in (qwen, miqu, mixtral)] == ["ddp", "zero2", "fsdp"]
    for one in (qwen, miqu, mixtral):
        assert (one["finetune"], one["quantization"], one["optimizer"]) == ("qlora", "nf4", "paged_adamw_8bit")
    assert qwen["keys"]["lora_modules_to_save"] == ["embed_tokens", "lm_head"]
    assert qwen["keys"]["special_tokens"]["eos_token"] == "<|im_end|>"
    assert (miqu["sequence_len"], miqu["sample_packing"], miqu["val_set_size"]) == (2048, True, 0)
    assert (mixtral["max_steps"], mixtral["val_set_size"]) == (100, 0.02)
    assert mixtral["keys"]["datasets"][0]["chat_template"] == "chatml"
    assert mixtral["keys"]["fsdp_config"] == {"transformer_layer_cls_to_wrap": "MixtralSparseMoeBlock"}
    assert mixtral["keys"]["model_config"] == {"output_router_logits": True}


def test_lenient_makes_unknown_keys_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    Path("typo.yml").write_text(SOUND + "lerning_rate: 1e-4\n")
    code, [item] = as_json(capsys, "--lenient", "typo.yml")
    assert (code, item["ok"]) == (0, True)
    assert [problem["severity"] for problem in item["problems"]] == ["warning"]


def test_effective_names_the_origin_of_every_value(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.yml").write_text(SOUND + "load_4bit: false\n")
    assert main(["check", "--effective", "old.yml", "seed=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        "learning_rate: 0.0002  # line 5",
        "load_in_4bit: false  # load_4bit, line 6",
        "seed: 7  # command line",
        "optimizer: adamw_torch  # default",
        "# datasets: line 2",
    ):
        assert line in lines


def test_overrides_are_checked_like_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, [item] = as_json(capsys, "sound.yml", "datasets.0.path=mine.jsonl", "learning_rate=")
    assert code == 0
    assert item["recipe"]["datasets"] == [{"path": "mine.jsonl", "type": "alpaca"}]
    assert main(["check", "sound.yml", "optimizer=adamv_torch"]) == 2
    assert capsys.readouterr().out.startswith(
        "error[unknown-optimizer]: no optimizer is called `adamv_torch`\n  --> command line\n"
        "help: did you mean `adamw_torch`?\n"
    )


def test_a_code_is_explained_and_an_unknown_one_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "alpha-is-zero"]) == 0
    text = "The adapter's output is scaled by alpha / r: with 0 it can never change anything."
    assert capsys.readouterr().out == f"alpha-is-zero\n\n{text}\n"
    assert main(["check", "--explain", "alpha-is-zeru"]) == 2
    assert capsys.readouterr().err.endswith("help: did you mean alpha-is-zero?\n")


def test_files_that_cannot_be_read_are_problems_like_others(capsys: pytest.CaptureFixture[str]) -> None:
    Path("latin.yml").write_bytes(b"base_model: caf\xe9\n")
    Path("empty.yml").write_text("")
    code, items = as_json(capsys, "nowhere.yml", "latin.yml", "empty.yml", "sound.yml", ".")
    assert code == 2
    assert [item["ok"] for item in items] == [False, False, False, True, False]
    codes = [[problem["code"] for problem in item["problems"]] for item in items]
    assert codes == [["unreadable"], ["encoding"], ["empty"], [], ["unreadable"]]


def test_no_recipe_of_the_corpus_brings_it_down(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(map(str, (corpus / "recipes").glob("*/*.y*ml")))
    assert main(["check", *files]) == 2
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].startswith(f"{len(files)} recipes: ")
    assert "Traceback" not in shown


def test_words_may_stand_before_and_after_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "sound.yml", "--json", "seed=3"]) == 0
    after = capsys.readouterr().out
    assert main(["check", "sound.yml", "seed=3", "--json"]) == 0
    assert capsys.readouterr().out == after
    assert json.loads(after)[0]["recipe"]["keys"]["seed"] == 3
    assert main(["check", "sound.yml", "--lenient", "broken.yml"]) == 2
    assert capsys.readouterr().out.endswith("2 recipes: 1 sound, 1 with errors (2 errors, 1 warning)\n")
    with pytest.raises(SystemExit):
        main(["check", "sound.yml", "--jason", "seed=3"])
