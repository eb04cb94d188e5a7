"""Every rule has an example, `problems/NAME.yaml`, whose whole text of complaint is `problems/NAME.txt`.

Renew the texts after reading what changed: FTKIT_RENEW=1 python -m pytest tests/recipe/test_rules.py
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest

from ftkit.recipe import check_recipe
from ftkit.recipe.render import render
from ftkit.recipe.rule import RULES
from ftkit.recipe.rule.base import Rule, code_of

PROBLEMS = Path(__file__).parent / "problems"


@pytest.mark.parametrize("path", sorted(PROBLEMS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_text_of_a_problem(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROBLEMS)
    _, problems = check_recipe(path.name)
    text = "\n".join(render(problem, path.read_text(encoding="utf8")) for problem in problems) + "\n"
    expected = path.with_suffix(".txt")
    if os.environ.get("FTKIT_RENEW"):
        expected.write_text(text, encoding="utf8")
    assert text == expected.read_text(encoding="utf8")
    assert any(path.stem.replace("_", "-").startswith(problem.code) for problem in problems)


@pytest.mark.parametrize("rule", RULES, ids=code_of)
def test_a_rule_is_short_explained_and_has_an_example(rule: Rule) -> None:
    body = inspect.getsource(rule).split('"""', 2)[2].strip().splitlines()
    assert len(body) <= 10, f"{rule.__name__} has {len(body)} lines"
    assert rule.__doc__
    assert rule.__doc__.strip().endswith(".")
    assert (PROBLEMS / f"{rule.__name__}.yaml").is_file()


def test_there_are_at_least_sixty_rules_of_distinct_names() -> None:
    assert len({code_of(rule) for rule in RULES}) == len(RULES) >= 60


def test_a_rule_is_silent_where_its_section_has_errors_but_the_others_speak(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yml"
    file.write_text(
        "base_model: org/model\ndatasets:\n  - path: rows.jsonl\n    type: alpaca\n"
        "bf16: maybe\nwarmup_steps: 10\nwarmup_ratio: 0.1\n"
    )
    _, problems = check_recipe(file)
    assert [problem.code for problem in problems] == ["type", "warmup-twice"]


def test_null_and_an_explicit_nothing_are_absent_in_every_rule(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yml"
    nulls = "deepspeed: ~\nfsdp:\nfp16:\nbf16: auto\nload_in_4bit: false\nwarmup_ratio:\nwarmup_steps: 0\neval_steps:\n"
    file.write_text(f"base_model: org/model\ndatasets:\n  - path: rows.jsonl\n    type: alpaca\n{nulls}")
    recipe, problems = check_recipe(file)
    assert recipe is not None
    assert problems == ()
