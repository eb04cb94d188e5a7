"""Rows of new tokens and a scaled loss on two real processes: what one process computes, DDP and FSDP2 compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import LORA, Case, Result, run_case
from pair import run_pair
from scaled import run_plain, run_scaled

from ftkit.parallel.backend import World
from ftkit.recipe.section.backend import BackendSection
from tiny import tiny_model

pytestmark = pytest.mark.slow

ROWS = {**LORA, "peft_trainable_token_indices": (3, 50, 299)}
NEW_ROWS = Case("new-rows", ROWS, optimizer="sgd", learning_rate=0.1, accumulation=2, steps=4)
TIED = replace(NEW_ROWS, name="new-rows-tied", model="tied")
FLOAT16 = Case("float16", LORA, dtype=torch.float16, autocast=torch.float16, rtol=1e-2, steps=4)
BACKENDS = {"ddp": BackendSection(), "fsdp": BackendSection(fsdp=("full_shard", "auto_wrap"))}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    folder = tmp_path_factory.mktemp("pair")
    tiny_model(folder / "llama", vocab_size=300)
    tiny_model(folder / "tied", vocab_size=300, tie_word_embeddings=True)
    tasks: dict[str, Any] = {}
    for name, section in BACKENDS.items():
        for case in (NEW_ROWS, TIED):
            tasks[f"{name}-{case.name}"] = (run_plain, (case, folder, section))
        tasks[f"{name}-float16"] = (run_scaled, (FLOAT16, folder, section))
    return folder, run_pair(tasks, folder / "job")


def alone() -> World:
    return World(0, 1, 0, 1, torch.device("cpu"))


@pytest.mark.parametrize("case", [NEW_ROWS, TIED], ids=lambda case: case.name)
@pytest.mark.parametrize("name", BACKENDS)
def test_new_rows_train_as_on_one_process(results: tuple[Path, dict[str, list[Any]]], name: str, case: Case) -> None:
    folder, found = results
    wanted: Result = run_case(case, alone(), folder, BackendSection())
    got: Result = found[f"{name}-{case.name}"][0]
    assert got.losses == pytest.approx(wanted.losses, rel=1e-5)
    assert got.norms == pytest.approx(wanted.norms, rel=1e-5)
    rows = [key for key in wanted.exported if key.endswith("trainable_tokens_delta")]
    assert rows
    for key in wanted.exported:
        torch.testing.assert_close(got.exported[key], wanted.exported[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_rank_skips_a_step_that_overflowed_on_one(results: tuple[Path, dict[str, list[Any]]], name: str) -> None:
    folder, found = results
    wanted = run_scaled(alone(), FLOAT16, folder, BackendSection())
    exact = run_case(replace(FLOAT16, dtype=torch.float32, autocast=None, steps=1), alone(), folder, BackendSection())
    assert wanted["losses"][0] == pytest.approx(exact.losses[0], rel=1e-2)
    assert wanted["norms"][0] == pytest.approx(exact.norms[0], rel=1e-2)
    for rank in found[f"{name}-float16"]:
        assert rank["skipped"] == wanted["skipped"] == 1
        assert rank["losses"] == pytest.approx(wanted["losses"], rel=1e-2)
        assert rank["norms"] == pytest.approx(wanted["norms"], rel=5e-2)
