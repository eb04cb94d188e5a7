"""`ftkit check` answers at once: no torch, and little more than reading YAML takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

RECIPE = Path(__file__).parent.parent / "recipe" / "problems" / "lora_on_4bit.yaml"
CHECK = ["-m", "ftkit.cli.main", "check", str(RECIPE)]
BASE = ["-c", "import yaml, pydantic"]


def seconds(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def test_check_takes_at_most_two_and_a_half_times_the_import_of_yaml_and_pydantic() -> None:
    rounds = [(seconds(BASE), seconds(CHECK)) for _ in range(8)]
    base, check = min(one for one, _ in rounds), min(other for _, other in rounds)  # least disturbed by other programs
    assert check <= 2.5 * base, f"check {check:.3f} s, base {base:.3f} s"


def test_no_command_of_the_recipe_language_imports_torch() -> None:
    code = (
        "import sys; from ftkit.cli.main import main\n"
        f"for words in (['check', {str(RECIPE)!r}], ['check', '--json', {str(RECIPE)!r}], ['migrate', {str(RECIPE)!r}],"
        f" ['check', '--effective', {str(RECIPE)!r}], ['check', '--explain', 'syntax'], ['schema']):\n    main(words)\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'numpy', 'datasets'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.returncode == 0, done.stderr
