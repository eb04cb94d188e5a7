"""The schema and the page of keys are not stale, and editors accept what ftkit accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftkit.cli.main import main
from ftkit.cli.schema import as_json, as_markdown
from ftkit.recipe import check_recipe
from ftkit.recipe.judge import KNOWN
from ftkit.recipe.refused import OF_OTHER_TOOLS, REFUSED, asks_for_nothing
from ftkit.recipe.source import read_source

KINDS = {"string": str, "boolean": bool, "integer": int, "number": int | float, "object": dict, "array": list}


def test_the_committed_schema_is_fresh(root: Path) -> None:
    committed = (root / "docs" / "recipe.schema.json").read_text(encoding="utf8")
    assert committed == as_json(), "stale: ftkit schema -o docs/recipe.schema.json"


def test_the_committed_page_of_keys_is_fresh(root: Path) -> None:
    committed = (root / "docs" / "recipe.md").read_text(encoding="utf8")
    assert committed == as_markdown(), "stale: ftkit schema --markdown -o docs/recipe.md"


def test_the_command_prints_or_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == as_json()
    assert main(["schema", "--markdown", "-o", str(tmp_path / "keys.md")]) == 0
    assert (tmp_path / "keys.md").read_text(encoding="utf8") == as_markdown()


def test_every_key_is_in_the_schema_and_on_the_page_and_is_described() -> None:
    schema = json.loads(as_json())
    page = as_markdown()
    for key in KNOWN:
        assert schema["properties"][key]["description"], key
        assert f"`{key}`" in page or key == "plugins", key


def test_every_sound_recipe_of_the_corpus_fits_the_schema(corpus: Path) -> None:
    schema = json.loads(as_json())
    num_checked = 0
    for path in sorted((corpus / "recipes").glob("*/*.y*ml")):
        if check_recipe(path)[0] is not None:
            data = read_source(str(path), path.read_bytes()).data
            assert list(misfits(data, schema, schema, "")) == [], path
            num_checked += 1
    assert num_checked > 150


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"base_model": "m", "lerning_rate": 1}, "lerning_rate"),
        ({"base_model": "m", "bf16": "maybe"}, "bf16"),
        ({"base_model": "m", "optimizer": "adam"}, "optimizer"),
        ({"base_model": "m", "datasets": {"path": "x"}}, "datasets"),
        ({"learning_rate": 1}, "base_model"),
        ({"base_model": "m", "gptq": True}, "gptq"),
        ({"base_model": "m", "rl": "dpo"}, "rl"),
    ],
)
def test_the_schema_refuses(data: Any, where: str) -> None:
    schema = json.loads(as_json())
    assert list(misfits(data, schema, schema, "")) == [f".{where}"]


def test_editors_take_the_schema_and_underline_no_more_than_check_does() -> None:
    """yaml-language-server refuses a schema that lists a value twice, and makes errors of deprecations."""
    schema = json.loads(as_json())
    assert "deprecationMessage" not in as_json()
    for part in parts(schema):
        if isinstance(part.get("enum"), list):
            assert len({json.dumps(value) for value in part["enum"]}) == len(part["enum"]), part
    for key in REFUSED.keys() - OF_OTHER_TOOLS:
        off = schema["properties"][key]["enum"]
        assert off[0] is None
        assert all(asks_for_nothing(key, value) for value in off[1:]), key


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """All schemas within a schema."""
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from parts(part)


def misfits(value: Any, schema: Any, root: Any, place: str) -> Iterator[str]:
    """Places where `value` does not fit: the part of JSON Schema that ours uses."""
    if "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        if all(list(misfits(value, arm, root, place)) for arm in schema["anyOf"]):
            yield place
        return
    if "enum" in schema and value not in schema["enum"]:
        yield place
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(is_kind(value, kind) for kind in kinds):
        yield place
    if isinstance(value, dict):
        yield from (f"{place}.{key}" for key in schema.get("required", ()) if key not in value)
        for key, item in value.items():
            if key in schema.get("properties", {}):
                yield from misfits(item, schema["properties"][key], root, f"{place}.{key}")
            elif schema.get("additionalProperties") is False:
                yield f"{place}.{key}"
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from misfits(item, schema["items"], root, f"{place}.{index}")


def is_kind(value: Any, kind: str) -> bool:
    if kind == "null":
        return value is None
    return isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
