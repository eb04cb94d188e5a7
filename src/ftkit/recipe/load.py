"""From a file to a `Recipe`: read, override, build, check. Everything that is wrong is said at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftkit.errors import RecipeError
from ftkit.recipe.build import build_sections, without_nulls
from ftkit.recipe.overrides import apply_overrides
from ftkit.recipe.problems import InvalidRecipe, Problem
from ftkit.recipe.recipe import Recipe
from ftkit.recipe.rule import check_rules
from ftkit.recipe.source import Source, dotted, read_source


def load_recipe(path: str | Path, overrides: Sequence[str] = (), *, lenient: bool = False) -> Recipe:
    """Read and check the recipe at `path`.

    Args:
        path: the YAML file.
        overrides: `key=value` words, as on the command line.
        lenient: unknown keys are warnings instead of errors.

    Raises:
        RecipeError: the file cannot be read, or anything in it is wrong; `InvalidRecipe.problems` has the whole list.
    """
    recipe, problems = check_recipe(path, overrides, lenient=lenient)
    if recipe is None:
        raise InvalidRecipe(problems)
    return recipe


def check_recipe(
    path: str | Path, overrides: Sequence[str] = (), *, lenient: bool = False
) -> tuple[Recipe | None, tuple[Problem, ...]]:
    """Return the recipe, or None if anything is an error, and all that was found, in the order of the file."""
    source = read_file(path)
    if not source.problems or source.data:
        apply_overrides(source, overrides)
        sections: dict[str, Any] = dict(build_sections(source, lenient=lenient))
        check_rules(source, sections)
    problems = tuple(sorted(source.problems, key=lambda p: (p.line, p.column)))
    if any(problem.severity == "error" for problem in problems):
        return None, problems
    given = frozenset(without_nulls(source.data))
    recipe = Recipe(
        **sections,
        file=str(path),
        source_text=source.text,
        overrides=tuple(overrides),
        given=given,
        origins={key: origin(source, key) for key in given},
        findings=problems,
    )
    return recipe, problems


def origin(source: Source, key: str) -> str:
    """Where the value of a top-level key comes from, in words."""
    path = (key,)
    old = source.renamed.get(path)
    if any(overridden[:1] == path for overridden in source.overridden):
        return "command line"
    if old is not None and old != path:
        return f"{dotted(old)}, line {source.nearest(old).line}"
    line = source.nearest(path).line
    return f"line {line}" if line else "migration"


def read_file(path: str | Path) -> Source:
    """Read a recipe's file into a `Source`."""
    return read_source(str(path), read_content(path))


def read_content(path: str | Path) -> bytes:
    """The bytes of a recipe's file; RecipeError where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise RecipeError("there is no such file", where=str(path), help="check the path of the recipe") from None
    except OSError as bad:
        raise RecipeError(f"the file cannot be read ({bad.strerror})", where=str(path)) from None
