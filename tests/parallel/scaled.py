"""A float16 run whose second step overflows, for `test_rows_and_float16.py`; rank processes import it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cases import Case, Result, run_case, start

from ftkit.parallel.backend import World
from ftkit.recipe.section.backend import BackendSection


def run_scaled(world: World, case: Case, folder: Path, section: BackendSection) -> dict[str, Any]:
    """Losses and norms of a float16 run whose second step overflows on rank 0 alone; and what the scale became."""
    running, said = start(case, world, folder, section), []  # type: ignore[var-annotated]
    running.backend.scale.begin(said.append)
    losses, norms = running.train(range(1))
    kept = running.backend.scale.value
    if world.rank == 0:
        running.backend.scale.value = 2.0**120
    running.train(range(1, 2))
    skipped = len(said)
    running.backend.scale.value = kept
    more, more_norms = running.train(range(2, case.steps))
    running.batches.close()
    return {"losses": losses + more, "norms": norms + more_norms, "skipped": skipped}


def run_plain(world: World, case: Case, folder: Path, section: BackendSection) -> Result:
    """`run_case`, called as rank processes call."""
    return run_case(case, world, folder, section)
