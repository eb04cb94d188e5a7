"""No key of the recipe language is read by nobody."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ftkit.errors import RecipeError
from ftkit.hardware import Machine, fit_to_machine
from ftkit.recipe import load_recipe
from ftkit.recipe.recipe import SECTIONS
from ftkit.recipe.section.data import DatasetSection
from ftkit.unserved import COMPANIONS, LISTED, REFUSED, REFUSED_OF_DATASETS

SOURCE = Path(__file__).resolve().parent.parent / "src" / "ftkit"
OF_ATTENTION = frozenset({"sdp_attention", "xformers_attention"})  # by ModelSection.attention and a migration
TEXT = "base_model: m\ndatasets: [{path: rows.jsonl, type: sharegpt}]\nlearning_rate: 1e-4\n"


def names_read() -> set[str]:
    """Attributes and words that the code outside the recipe language and its tables uses."""
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] not in {"recipe", "unserved.py"}:
            if path.name == "identity.py":
                continue  # it lists the keys that make no difference
            for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
                if isinstance(node, ast.Attribute):
                    names.add(node.attr)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names.add(node.value)
    return names


@pytest.mark.parametrize("section", [*SECTIONS.values(), DatasetSection], ids=lambda s: s.__name__)
def test_every_key_is_read_or_said_not_to_be(section: type) -> None:
    accounted = names_read() | OF_ATTENTION | LISTED.keys() | REFUSED | REFUSED_OF_DATASETS | COMPANIONS.keys()
    assert set(section.model_fields) - accounted == set()


def test_no_key_stands_in_two_tables() -> None:
    assert not LISTED.keys() & REFUSED
    assert not COMPANIONS.keys() & (LISTED.keys() | REFUSED)


def test_a_key_that_changes_what_is_learned_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yml"
    file.write_text(TEXT + "neftune_noise_alpha: 5\nlora_target_parameters: [w]\n", encoding="utf8")
    with pytest.raises(RecipeError) as caught:
        fit_to_machine(load_recipe(file), Machine("cpu", bf16=False))
    assert "does not serve these keys yet\n  lora_target_parameters: ('w',)\n  neftune_noise_alpha: 5" in str(
        caught.value
    )


def test_a_key_of_convenience_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yml"
    file.write_text(TEXT + "save_only_model: true\ndataset_processes: 4\n", encoding="utf8")
    _, substitutions = fit_to_machine(load_recipe(file), Machine("cpu", bf16=False))
    assert {(s.key, s.asked) for s in substitutions} == {("save_only_model", "true"), ("dataset_processes", "4")}
