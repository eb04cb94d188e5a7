"""The import table of ARCHITECTURE.md, held against the code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "ftkit"

FLOOR = {"errors", "catalog", "optional", "hub"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "catalog": set(),
    "optional": {"errors"},
    "hub": set(),
    "__init__": {"recipe"},
    "recipe": {"errors", "catalog"},
    "unserved": {"errors", "recipe"},
    "hardware": {"errors", "recipe", "unserved"},
    "precision": {"recipe"},
    "data": FLOOR | {"recipe.section"},
    "model": FLOOR | {"recipe.section"},
    "optim": FLOOR | {"recipe.section"},
    "parallel": FLOOR | {"recipe.section"},
    "report": FLOOR | {"recipe.section"},
    "objective": FLOOR | {"data"},
    "save": FLOOR | {"recipe.section", "model", "parallel"},
    "planning": FLOOR | {"recipe", "model.plan"},
    "train": FLOOR | {"recipe.section", "data", "objective", "optim", "parallel", "save", "report"},
    "train.__main__": {"cli"},
    "run": {"*"},
    "assemble": {"*"},
    "inputs": FLOOR | {"recipe", "data"},
    "summary": {"*"},
    "token_audit": {"*"},
    "cli": FLOOR
    | {"run", "parallel", "planning", "save", "report", "recipe", "hardware", "data", "model", "inputs", "unserved"},
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def layer_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    dotted = ".".join(parts)
    return dotted if dotted in MAY_IMPORT else parts[0]


def imported(tree: ast.AST) -> set[str]:
    """Dotted names below `ftkit.` that a module imports, at any depth of the code."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute"
            names |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "ftkit" else {node.module}
            )
    return {name.removeprefix("ftkit.") for name in names if name.startswith("ftkit.")}


def is_allowed(name: str, layer: str) -> bool:
    allowed = MAY_IMPORT[layer]
    own = layer.split(".")[0]
    return "*" in allowed or name.split(".")[0] == own or any(name == a or name.startswith(f"{a}.") for a in allowed)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_module_imports_only_what_its_layer_may(path: Path) -> None:
    layer = layer_of(path)
    bad = {name for name in imported(ast.parse(path.read_text(encoding="utf8"))) if not is_allowed(name, layer)}
    assert not bad, f"{layer} may not import {sorted(bad)}"


def test_the_check_finds_a_forbidden_import() -> None:
    tree = ast.parse("def f():\n    from ftkit.train.loop import Trainer\n    import ftkit.run")
    assert {name for name in imported(tree) if not is_allowed(name, "data")} == {"train.loop", "run"}


def outside_names(tree: ast.Module) -> set[str]:
    """Names that an import at any depth bound in a module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names


def patches(tree: ast.Module) -> list[str]:
    """Places that change somebody else's object: assignment onto an imported name, setattr on one, MethodType, exec."""
    found, outside = [], outside_names(tree)
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            root = target
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(target, ast.Attribute) and isinstance(root, ast.Name) and root.id in outside:
                found.append(f"line {node.lineno}: assigns onto {ast.unparse(target)}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"setattr", "delattr"}:
            first = node.args[0]
            if isinstance(first, ast.Name) and first.id in outside:
                found.append(f"line {node.lineno}: {node.func.id} on {first.id}")
        if isinstance(node, ast.Name) and node.id in {"exec", "eval", "MethodType"}:
            found.append(f"line {node.lineno}: {node.id}")
        if isinstance(node, ast.Attribute) and node.attr == "MethodType":
            found.append(f"line {node.lineno}: MethodType")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_library_is_patched(path: Path) -> None:
    assert patches(ast.parse(path.read_text(encoding="utf8"))) == []


def test_the_check_finds_patches() -> None:
    code = (
        "import torch\nfrom transformers import Trainer\n"
        "torch.nn.Linear.forward = f\nsetattr(Trainer, 'x', 1)\nexec('')\n"
    )
    assert len(patches(ast.parse(code))) == 3
