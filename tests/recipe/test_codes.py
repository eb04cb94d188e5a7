from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import ftkit.recipe
from ftkit.recipe.codes import explain, explanations

FOLDER = Path(ftkit.recipe.__file__).parent
CODE_AT = {"note": 0, "problem": 0, "Problem": 5, "report": 2}  # function or class -> position of the code


def codes_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        position = CODE_AT.get(name)
        if position is not None and position < len(node.args) and isinstance(node.args[position], ast.Constant):
            yield node.args[position].value


def test_every_code_in_the_source_is_explained() -> None:
    files = [path for path in FOLDER.rglob("*.py") if path.parent.name != "rule"]
    used = {code for path in files for code in codes_in(ast.parse(path.read_text(encoding="utf8")))}
    assert len(used) > 15
    assert used - explanations().keys() == set()


def test_every_explanation_is_used_and_is_a_sentence() -> None:
    files = [*FOLDER.rglob("*.py"), *(FOLDER.parent / "cli").glob("*.py")]
    source = "".join(path.read_text(encoding="utf8") for path in files if path.name != "codes.py")
    for code, text in explanations().items():
        assert f'"{code}"' in source or f"def {code.replace('-', '_')}(" in source, code
        assert text.endswith("."), code


def test_a_rule_explains_itself_by_its_docstring() -> None:
    text = explain("bf16-and-fp16")
    assert text == "A run computes in one 16-bit format: bfloat16 has the wider range, float16 is for older GPUs."
    assert explain("no-such-code") is None
