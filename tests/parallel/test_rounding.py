"""Rounding forward passes, and adapters that start at a rounding error, are the same on one process and on two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import LORA, Case, Result, run_case, run_on_rank
from pair import run_pair

from ftkit.parallel.backend import World
from ftkit.recipe.section.backend import BackendSection
from tiny import tiny_model

ALONE = World(0, 1, 0, 1, torch.device("cpu"))
WRAP = {"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
BACKENDS = {"ddp": BackendSection(), "fsdp": BackendSection(fsdp=("full_shard", "auto_wrap"), fsdp_config=WRAP)}
# A weight that comes to lie on the border between two codes goes either way by the last bit of a sum over ranks.
CASES = {
    case.name: case
    for case in (
        Case(
            "int", quantization={"qat": {"activation_dtype": "int8", "weight_dtype": "int4"}}, steps=6, accumulation=2
        ),
        Case("float", quantization={"qat": {"activation_dtype": "nvfp4", "weight_dtype": "nvfp4"}}, steps=6),
        Case("loftq", {**LORA, "peft": {"loftq_config": {"loftq_bits": 4}}}, steps=6, packed=True),
    )
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Result], dict[str, list[Any]]]:
    """Of one process by case, and of two by case and backend."""
    pytest.importorskip("torchao")
    folder = tmp_path_factory.mktemp("rounding")
    tiny_model(folder / "llama", vocab_size=300)
    tasks = {
        f"{case.name} {name}": (run_on_rank, (case, folder, section))
        for case in CASES.values()
        for name, section in BACKENDS.items()
    }
    alone = {case.name: run_case(case, ALONE, folder, BackendSection()) for case in CASES.values()}
    return alone, run_pair(tasks, folder / "pair")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one(results: tuple[Any, Any], name: str, backend: str) -> None:
    alone, pair = results
    one, two = alone[name], pair[f"{name} {backend}"][0]
    assert two.losses[:2] == pytest.approx(one.losses[:2], rel=1e-5)  # until the first weight goes the other way
    assert two.losses == pytest.approx(one.losses, rel=1e-5 if name == "loftq" else 1e-3)
    assert two.norms[:2] == pytest.approx(one.norms[:2], rel=1e-3)
    assert two.exported.keys() == one.exported.keys()
    assert two.bytes_unchanged
