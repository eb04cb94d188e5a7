"""From a text to a recipe: any text is answered, typos are understood, the effective recipe means the same."""

from __future__ import annotations

import random
import string
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ftkit
from ftkit.errors import RecipeError
from ftkit.recipe import InvalidRecipe, Recipe, check_recipe, load_recipe
from ftkit.recipe.effective import effective_yaml
from ftkit.recipe.judge import KNOWN
from ftkit.recipe.keys import HOLDERS, nearest

SMALL = "base_model: org/model\ndatasets:\n  - path: rows.jsonl\n    type: alpaca\n"
SLOW_FILES = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)

VALUES = st.one_of(
    st.sampled_from(
        ["true", "no", "auto", "0", "1", "8", "0.5", "2e-4", "'3'", "~", "", "[a, b]", "{a: 1}", "qlora", "x"]
    ),
    st.text(max_size=8),
)
LINES = st.lists(st.tuples(st.sampled_from(sorted(KNOWN)), VALUES), max_size=12)


def written(folder: Path, text: str) -> Path:
    file = folder / "recipe.yml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    return file


def same(before: Recipe, after: Recipe) -> bool:
    return replace(before, file="") == replace(after, file="")


@SLOW_FILES
@given(st.text())
def test_any_text_gives_problems_or_a_recipe(tmp_path: Path, text: str) -> None:
    recipe, problems = check_recipe(written(tmp_path, text))
    assert recipe is not None or any(problem.severity == "error" for problem in problems)


@SLOW_FILES
@given(LINES)
def test_any_values_of_real_keys_give_problems_or_a_recipe(tmp_path: Path, lines: list[tuple[str, str]]) -> None:
    text = SMALL + "".join(f"{key}: {value}\n" for key, value in lines)
    recipe, problems = check_recipe(written(tmp_path, text))
    assert recipe is not None or any(problem.severity == "error" for problem in problems)
    if recipe is not None:
        hash(recipe)
        again, _ = check_recipe(written(tmp_path, effective_yaml(recipe)))
        assert again is not None
        assert same(again, recipe)


@SLOW_FILES
@given(
    st.lists(st.text(max_size=20) | st.sampled_from(["datasets.0.path=x", "datasets.9=", "a.b.c=1", "=", "bf16=true"]))
)
def test_any_overrides_give_problems_or_a_recipe(tmp_path: Path, overrides: list[str]) -> None:
    recipe, problems = check_recipe(written(tmp_path, SMALL), overrides)
    assert recipe is not None or any(problem.severity == "error" for problem in problems)


def test_the_effective_recipe_of_every_sound_one_of_the_corpus_loads_back_equal(corpus: Path, tmp_path: Path) -> None:
    num_sound = 0
    for path in sorted((corpus / "recipes").glob("*/*.y*ml")):
        recipe, _ = check_recipe(path)
        if recipe is None:
            continue
        num_sound += 1
        again, problems = check_recipe(written(tmp_path, effective_yaml(recipe)))
        assert again is not None, (path, problems)
        assert same(again, recipe), path
        assert hash(replace(again, file="")) == hash(replace(recipe, file=""))
    assert num_sound > 200


def test_of_a_hundred_typos_at_least_95_are_understood_at_once() -> None:
    numbers = random.Random(0)
    keys = [key for key in HOLDERS if len(key) > 3]
    typos = [(key, typo(key, numbers)) for key in numbers.sample(keys, 100)]
    missed = [(key, wrong, nearest(wrong, KNOWN)) for key, wrong in typos if nearest(wrong, KNOWN) != key]
    assert len(missed) <= 5, missed


def typo(key: str, numbers: random.Random) -> str:
    """`key` with one letter changed, left out, doubled, added, or swapped with the next."""
    while True:
        at = numbers.randrange(len(key) - 1)
        letter = numbers.choice(string.ascii_lowercase)
        wrong = numbers.choice(
            [
                key[:at] + letter + key[at + 1 :],
                key[:at] + key[at + 1 :],
                key[:at] + key[at] + key[at:],
                key[:at] + letter + key[at:],
                key[:at] + key[at + 1] + key[at] + key[at + 2 :],
            ]
        )
        if wrong not in KNOWN:
            return wrong


def test_a_recipe_is_frozen_hashable_and_equal_by_its_values(tmp_path: Path) -> None:
    recipe = ftkit.load_recipe(written(tmp_path, SMALL + "learning_rate: 2e-4\nfsdp_config: {offload_params: true}\n"))
    other = ftkit.load_recipe(written(tmp_path, "# another text\n" + SMALL + "fsdp_config: {offload_params: true}\n"))
    assert recipe == other
    assert len({recipe, other}) == 1
    with pytest.raises(AttributeError):
        recipe.model = other.model  # type: ignore[misc]
    with pytest.raises(Exception, match="frozen"):
        recipe.model.base_model = "other"


def test_overrides_change_the_recipe_and_are_named_in_problems(tmp_path: Path) -> None:
    file = written(tmp_path, SMALL + "deepspeed: zero2.json\n")
    recipe = load_recipe(file, ["learning_rate=1e-4", "datasets.0.path=my.jsonl", "deepspeed="])
    assert recipe.optimization.learning_rate == 1e-4
    assert recipe.data.datasets[0].path == "my.jsonl"
    assert recipe.backend.deepspeed is None
    with pytest.raises(InvalidRecipe) as caught:
        load_recipe(file, ["learning_rate=fast", "lerning_rate=1"])
    errors = {(p.file, p.line, p.code) for p in caught.value.problems if p.severity == "error"}
    assert errors == {("command line", 0, "type"), ("command line", 0, "unknown-key")}


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "none.yml")
    assert str(caught.value) == f"{tmp_path / 'none.yml'}: there is no such file\nhelp: check the path of the recipe"
