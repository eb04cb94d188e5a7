"""What is shipped beside the code: the demo's rows, its held-out questions, the recipes and the ZeRO configurations."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SIGNATURE = "Happy tuning."
STACKS = sorted((ROOT / "configs").glob("interleave-*.yml"))
RECIPES = [path for path in sorted((ROOT / "configs").glob("*.yml")) if path not in STACKS]
ZERO = {path.stem: json.loads(path.read_text("utf8")) for path in sorted((ROOT / "deepspeed_configs").glob("*.json"))}


def read_rows() -> list[list[dict[str, str]]]:
    lines = (ROOT / "examples" / "house_style.jsonl").read_text("utf8").splitlines()
    return [json.loads(line)["conversations"] for line in lines]


def normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def prompts(rows: list[list[dict[str, str]]]) -> list[str]:
    return [turn["value"] for row in rows for turn in row if turn["from"] == "human"]


def answers(rows: list[list[dict[str, str]]]) -> list[str]:
    return [turn["value"] for row in rows for turn in row if turn["from"] == "gpt"]


def held_out() -> list[str]:
    recipe = yaml.safe_load((ROOT / "configs" / "demo.yml").read_text("utf8"))
    return list(recipe["sample_prompts"])


def test_there_are_about_150_rows() -> None:
    assert 140 <= len(read_rows()) <= 160


def test_every_row_is_a_conversation_that_ends_with_an_answer() -> None:
    for number, row in enumerate(read_rows(), 1):
        assert all(set(turn) == {"from", "value"} and turn["value"].strip() == turn["value"] != "" for turn in row), (
            number
        )
        roles = "".join(turn["from"][0] for turn in row)
        assert re.fullmatch(r"s?(hg)+", roles), f"row {number}: {roles}"


def test_every_answer_has_the_house_style() -> None:
    for answer in answers(read_rows()):
        body = answer.removesuffix(" " + SIGNATURE)
        assert body != answer, f"no signature: {answer}"
        sentences = re.split(r"(?<=[.?!])\s+", body)
        assert 1 <= len(sentences) <= 2, f"not one or two sentences: {answer}"
        assert body[-1] in ".?", answer
        assert len(body.split()) <= 20, f"too long: {answer}"


def test_every_prompt_is_asked_once() -> None:
    asked = [normalised(prompt) for prompt in prompts(read_rows())]
    assert sorted(asked) == sorted(set(asked))


def test_held_out_questions_are_in_no_row() -> None:
    asked = {normalised(prompt) for prompt in prompts(read_rows())}
    everything = normalised(" ".join(turn["value"] for row in read_rows() for turn in row))
    assert len(held_out()) == 3
    for question in held_out():
        assert normalised(question) not in asked
        assert normalised(question) not in everything
    assert "berlin" not in everything.split()
    assert "germany" not in everything.split()


def test_the_data_teaches_name_and_maker() -> None:
    said = answers(read_rows())
    assert sum("Wren" in answer for answer in said) >= 35
    assert sum("ftkit workshop" in answer for answer in said) >= 35
    assert sum("Wren" not in answer and "ftkit" not in answer for answer in said) >= 75


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path: Path) -> None:
    ftkit = pytest.importorskip("ftkit")
    if not hasattr(ftkit, "load_recipe"):
        pytest.skip("ftkit.load_recipe is not there yet")
    assert ftkit.load_recipe(path).model.base_model


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_says_how_it_is_run_and_what_it_names_exists(path: Path) -> None:
    text = path.read_text("utf8")
    recipe = yaml.safe_load(text)
    assert f"configs/{path.name}" in text
    local = [row["path"] for row in recipe["datasets"] if row["path"].endswith(".jsonl")]
    for name in [*local, *([recipe["deepspeed"]] if "deepspeed" in recipe else [])]:
        assert (ROOT / name).is_file(), name


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    zero = {key: value for key, value in config["zero_optimization"].items() if key not in keys}
    return {**config, "zero_optimization": zero}


def test_zero_configurations_differ_only_in_what_their_names_say() -> None:
    assert set(ZERO) == {"zero1", "zero2", "zero3", "zero3_offload"}
    stages = {name: config["zero_optimization"]["stage"] for name, config in ZERO.items()}
    assert stages == {"zero1": 1, "zero2": 2, "zero3": 3, "zero3_offload": 3}
    common = without(ZERO["zero1"], "stage")
    assert without(ZERO["zero2"], "stage") == common
    assert without(ZERO["zero3"], "stage") == common
    assert without(ZERO["zero3_offload"], "stage", "offload_optimizer", "offload_param") == common
    assert {"offload_optimizer", "offload_param"} <= set(ZERO["zero3_offload"]["zero_optimization"])


@pytest.mark.parametrize("name", sorted(ZERO))
def test_zero_configurations_leave_to_the_recipe_what_is_the_recipes(name: str) -> None:
    config = ZERO[name]
    for key in (
        "gradient_clipping",
        "gradient_accumulation_steps",
        "train_micro_batch_size_per_gpu",
        "train_batch_size",
    ):
        assert config[key] == "auto"
    assert config["bf16"]["enabled"] == config["fp16"]["enabled"] == "auto"
    assert not {"optimizer", "scheduler"} & set(config)
