"""`ftkit check FILE ...`: everything that is wrong with recipes, without running them. Never imports torch."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ftkit.errors import RecipeError
from ftkit.recipe import Problem, Recipe, check_recipe
from ftkit.recipe.render import render


@dataclass(frozen=True, slots=True)
class Checked:
    """One file: the recipe if it is sound, all that was found, and the text it was found in."""

    file: str
    recipe: Recipe | None
    problems: tuple[Problem, ...]
    text: str


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `check` to the commands."""
    about = (
        "Say everything that is wrong with recipes, without running them. Words with = change keys of a single file."
    )
    parser = subparsers.add_parser("check", description=about)
    parser.add_argument("words", nargs="*", metavar="FILE or key=value")
    parser.add_argument("--json", action="store_true", help="a list with an item for each file")
    parser.add_argument("--lenient", action="store_true", help="unknown keys are warnings")
    parser.add_argument("--effective", action="store_true", help="print the resolved recipe with each value's origin")
    parser.add_argument("--explain", metavar="CODE", help="say what a kind of problem means")


def run(arguments: argparse.Namespace) -> int:
    """Check the files; return 0 if all are sound, else 2."""
    if arguments.explain:
        return explain(arguments.explain)
    files = [word for word in arguments.words if "=" not in word or Path(word).is_file()]
    overrides = [word for word in arguments.words if word not in files]
    if not files:
        raise RecipeError("no file is given", where="command line", help="ftkit check recipe.yml")
    if overrides and len(files) > 1:
        raise RecipeError(
            f"overrides go with a single file, got {len(files)}", where="command line", help="check one file at a time"
        )
    checked = [check(file, overrides, lenient=arguments.lenient) for file in files]
    if arguments.json:
        print(json.dumps([as_json(one) for one in checked], indent=2, ensure_ascii=False))
    else:
        show(checked, effective=arguments.effective)
    return 0 if all(one.recipe for one in checked) else 2


def check(file: str, overrides: list[str], *, lenient: bool) -> Checked:
    """Check one file; one that cannot be read is a problem like any other, so that the next ones are checked too."""
    try:
        recipe, problems = check_recipe(file, overrides, lenient=lenient)
    except RecipeError as unreadable:
        problem = Problem("error", file, 0, 0, "", "unreadable", unreadable.what, unreadable.help or "")
        return Checked(file, None, (problem,), "")
    return Checked(file, recipe, problems, Path(file).read_text(encoding="utf-8-sig", errors="replace"))


def as_json(checked: Checked) -> dict[str, Any]:
    """One item of `--json`; `recipe` is null where there is an error."""
    from ftkit.recipe.describe import describe

    recipe = checked.recipe
    problems = [asdict(problem) for problem in checked.problems]
    for problem in problems:
        del problem["file"]
    described = {**describe(recipe), "keys": recipe.as_keys()} if recipe else None
    return {"file": checked.file, "ok": recipe is not None, "problems": problems, "recipe": described}


def show(checked: list[Checked], *, effective: bool) -> None:
    """Print for people: problems, then one line that counts them. With `effective`, the recipe instead of the count."""
    from ftkit.recipe.effective import effective_yaml

    colour = sys.stdout.isatty()
    for one in checked:
        for problem in one.problems:
            print(render(problem, one.text, colour=colour), end="\n\n", file=sys.stderr if effective else sys.stdout)
        if effective and one.recipe:
            print(effective_yaml(one.recipe), end="")
    if not effective:
        print(count(checked))


def count(checked: list[Checked]) -> str:
    """`2 recipes: 1 sound, 1 with errors (3 errors, 1 warning)`."""
    found = [problem.severity for one in checked for problem in one.problems]
    kinds = [(found.count(kind), kind) for kind in ("error", "warning", "note")]
    numbers = ", ".join(plural(number, kind) for number, kind in kinds if number)
    sound = sum(one.recipe is not None for one in checked)
    parts = [f"{sound} sound"] if sound else []
    parts += [f"{len(checked) - sound} with errors"] if sound < len(checked) else []
    return f"{plural(len(checked), 'recipe')}: {', '.join(parts)}" + (f" ({numbers})" if numbers else "")


def plural(number: int, noun: str) -> str:
    """`1 note`, `2 notes`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def explain(code: str) -> int:
    """Print what a code means; an unknown one is an error that names the nearest."""
    from ftkit.recipe.codes import explain as text_of
    from ftkit.recipe.codes import explanations
    from ftkit.recipe.keys import nearest

    text = text_of(code)
    if text is None:
        guess = nearest(code, explanations())
        raise RecipeError(
            f"no problem has this code, got {code}",
            where="--explain",
            help=f"did you mean {guess}?" if guess else f"one of {', '.join(sorted(explanations()))}",
        )
    print(f"{code}\n\n{text}")
    return 0
