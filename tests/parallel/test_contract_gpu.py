"""The contract on a GPU: every backend as the only rank over NCCL, and two real ranks on one GPU over gloo."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, Result, run_on_rank, with_steps
from pair import Failed, run_pair

from ftkit.recipe.section.backend import BackendSection
from ftkit.recipe.section.frozen import FrozenMap
from tiny import tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1500)]

FORCED = dict.fromkeys(("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size"), 0)
SECTIONS = {
    "ddp": BackendSection(),
    "fsdp": BackendSection(fsdp=("full_shard",)),
    "fsdp-offload": BackendSection(fsdp=("full_shard", "offload")),
    "zero2": BackendSection(deepspeed=FrozenMap({"zero_optimization": {"stage": 2}})),
    "zero3": BackendSection(deepspeed=FrozenMap({"zero_optimization": {"stage": 3, **FORCED}})),
}
CHOSEN = ("full-tied-packed", "lora-sgd-silent", "qlora", "qlora-packed", "qlora-8bit", "qlora-bf16")
STEPS = 6  # gloo carries every gathered block of a GPU through the host
ROUNDING = 5.0  # a GPU adds in another order than the CPU's tolerance is made for


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_model(folder / "llama", vocab_size=300, seed=1)
    tiny_model(folder / "tied", vocab_size=300, seed=2, tie_word_embeddings=True)
    return folder


def results(models: Path, section: BackendSection, folder: Path, size: int) -> dict[str, Any]:
    tasks = {name: (run_on_rank, (with_steps(CASES[name], STEPS), models, section)) for name in CHOSEN}
    return run_pair(tasks, folder, size=size, device="cuda")


@pytest.fixture(scope="module")
def single(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Result]]:
    """One process without a backend of several, on the GPU; NCCL is there and unused."""
    return results(models, BackendSection(), tmp_path_factory.mktemp("single"), 1)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", SECTIONS)
def test_losses_norms_and_weights_are_those_of_one_process(
    name: str, size: int, models: Path, single: dict[str, list[Result]], tmp_path: Path
) -> None:
    if (name, size) == ("ddp", 1):
        pytest.skip("one process without keys is the reference itself")
    found, wrong = results(models, SECTIONS[name], tmp_path / "pair", size), []
    for case in CHOSEN:
        want, rtol = single[case][0], CASES[case].rtol * ROUNDING
        for rank in found.get(case, [Failed("not run")]):
            if isinstance(rank, Failed):
                wrong.append(f"{case}: {rank[-1500:]}")
                continue
            off = max(abs(a / b - 1) for a, b in zip(rank.losses + rank.norms, want.losses + want.norms, strict=True))
            if not off <= rtol:
                wrong.append(f"{case}: losses and norms are {off:.1e} off")
            if not rank.bytes_unchanged:
                wrong.append(f"{case}: packed bytes changed")
        if case in found and isinstance(found[case][0], Result):
            weights = found[case][0].exported
            size_of = math.sqrt(sum(float(t.double().square().sum()) for t in want.exported.values()))
            far = math.sqrt(
                sum(float((weights[n].double() - t.double()).square().sum()) for n, t in want.exported.items())
            )
            if not far <= rtol * size_of:
                wrong.append(f"{case}: weights are {far / size_of:.1e} off")
    assert not wrong, "\n".join(wrong)
