"""A recipe written out loads back equal, whatever its texts hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ftkit.recipe import load_recipe
from ftkit.recipe.effective import effective_yaml, entry
from ftkit.recipe.source import read_source

ODD = "\n```\n", "x\u00a0: \u200b", "a\u0085b\u2028c", "\ufeffx", "tab\there", "naïve: {{ 'é' }}\n  # x\n"


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_load_back(tmp_path: Path, text: str) -> None:
    file = tmp_path / "recipe.yml"
    keys = {
        "base_model": "org/model",
        "datasets": [{"path": "rows.jsonl", "type": "chat_template"}],
        "chat_template": "jinja",
        "chat_template_jinja": text,
    }
    file.write_text(yaml.safe_dump(keys), encoding="utf8")
    recipe = load_recipe(file)
    assert recipe.as_keys()["chat_template_jinja"] == text
    file.write_text(effective_yaml(recipe), encoding="utf8")
    assert load_recipe(file).as_keys() == recipe.as_keys()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_read_back_without_a_word(text: str) -> None:
    source = read_source("recipe.yml", entry("key", text, "default"))
    assert source.data == {"key": text}
    assert not source.problems


def test_ordinary_text_of_other_languages_is_not_escaped() -> None:
    assert entry("key", "naïve 模型", "line 1") == "key: naïve 模型  # line 1\n"
