"""Every stage of ZeRO against one process with the same global batch. One pair of processes runs all checks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_zoo import tiny_config
from torch import Tensor
from transformers import AutoModelForCausalLM
from zero_cases import CPU, Case, make, train, whole

from ftkit.parallel.backend import World
from ftkit.parallel.single import SingleBackend

ROOT = Path(__file__).resolve().parents[2]
STAGES = (1, 2, 3)
CPU_OFFLOAD = {"device": "cpu"}
MATRIX: Mapping[str, Case] = {
    "full-adamw": Case("full"),
    "full-sgd-x4": Case("full", optimizer="sgd", accumulation=4),
    "lora-sgd": Case("lora", optimizer="sgd"),
    "qlora-adamw-x4": Case("qlora", accumulation=4),
    "qlora-sgd-packed": Case("qlora", optimizer="sgd", documents=3, max_norm=0.0),
    "qlora-adamw-packed": Case("qlora", documents=3),
    "offloaded": Case("qlora", zero={"offload_optimizer": CPU_OFFLOAD}, steps=4),
}
ONLY_3: Mapping[str, Case] = {
    "reentrant": Case("qlora", checkpointing="reentrant", steps=4, optimizer="sgd"),
    "checkpointed": Case("qlora", checkpointing="plain", steps=4, optimizer="sgd"),
    "tied": Case("full", model="llama-tied", steps=4, optimizer="sgd"),
    "dora": Case("dora", steps=4, optimizer="sgd"),
    "embeddings": Case("embeddings", steps=4, optimizer="sgd"),
    "parameters-offloaded": Case("qlora", steps=4, zero={"offload_param": CPU_OFFLOAD}),
    "mixtral": Case("full", model="mixtral", steps=4, optimizer="sgd"),
}
BF16 = Case("qlora", dtype=torch.bfloat16, autocast=torch.bfloat16, steps=6, optimizer="sgd")
EIGHT_BIT: Mapping[str, Case] = {
    "8bit-qlora": Case("wide-qlora", optimizer="adamw_bnb_8bit", model="wide", rate=1e-3),
    "8bit-full": Case("full", optimizer="paged_adamw_8bit", model="wide", rate=1e-3, steps=8),
}
OPTIMIZERS = {"adamw": "adamw_torch", "sgd": "sgd", "8bit": "adamw_bnb_8bit"}


def every_run() -> dict[str, tuple[Case, int]]:
    runs = {f"{name}-{stage}": (case, stage) for name, case in MATRIX.items() for stage in STAGES}
    runs |= {name: (case, 3) for name, case in ONLY_3.items()}
    for name, case in {"bf16": BF16, **EIGHT_BIT}.items():
        runs |= {f"{name}-{stage}": (case, stage) for stage in STAGES}
    return runs


def every_check(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    checks: dict[str, tuple[str, dict[str, Any]]] = {
        name: ("trains", {"case": case, "stage": stage, "model": folder / case.model})
        for name, (case, stage) in every_run().items()
    }
    for stage in STAGES:
        for name, optimizer in OPTIMIZERS.items():
            case = replace(EIGHT_BIT["8bit-qlora"], optimizer=optimizer)
            place = folder / f"saved-{name}-{stage}"
            arguments = {"case": case, "stage": stage, "model": folder / case.model, "folder": place}
            checks[f"resumes-{name}-{stage}"] = ("resumes", arguments)
        plain = {"case": Case("lora"), "stage": stage, "model": folder / "llama"}
        checks[f"loss-{stage}"] = ("refuses_what_is_not_finite", {**plain, "in_loss": True})
        checks[f"norm-{stage}"] = ("refuses_what_is_not_finite", {**plain, "in_loss": False})
        checks[f"exports-{stage}"] = ("exports", {**plain, "folder": folder / f"adapter-{stage}"})
    checks["refused"] = ("refuses_checkpoints", {**plain, "folder": folder / "refused"})
    checks["shards"] = ("shards", {"case": Case("qlora"), "model": folder / "llama"})
    return checks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and what a pair of processes found, a file a check."""
    folder = tmp_path_factory.mktemp("zero")
    for name in ("llama", "llama-tied", "mixtral"):
        save_model(tiny_config(name), folder / name)
    wide = tiny_config("llama")
    wide.hidden_size, wide.intermediate_size = 64, 96
    wide.head_dim = 16
    save_model(wide, folder / "wide")
    torch.save(every_check(folder), folder / "checks.pt")
    paths = [ROOT / "src", ROOT / "tests", ROOT / "tests/model", ROOT / "tests/parallel"]
    variables = {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, str(ROOT / "tests/parallel/zero_worker.py"), str(folder)]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=900)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)[-6000:]
    return folder


def save_model(config: Any, folder: Path) -> None:
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    net.save_pretrained(folder)


def found(folder: Path, name: str) -> Any:
    result = torch.load(folder / f"{name}.pt", weights_only=False)
    assert not isinstance(result, dict) or "failure" not in result, result["failure"]
    return result


_ALONE: dict[str, tuple[list[float], list[float], dict[str, Tensor]]] = {}


def alone(folder: Path, case: Case) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """The same run in this process."""
    case = replace(case, zero={}, checkpointing="")
    key = f"{folder}{case}"
    if key not in _ALONE:
        ready = make(case, folder / case.model, SingleBackend(World(0, 1, 0, 1, CPU)))
        losses, norms = train(case, ready, range(case.steps), 0, 2, alone=True)
        _ALONE[key] = losses, norms, whole(ready)
    return _ALONE[key]


def assert_same_weights(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (ours[name].shape, ours[name].dtype) == (tensor.shape, tensor.dtype), name
        if tensor.is_floating_point():
            distance = (ours[name].double() - tensor.double()).norm() / tensor.double().norm().clamp(min=1e-3)
            assert distance < tolerance, name
        else:
            assert torch.equal(ours[name], tensor), name


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", MATRIX)
def test_every_stage_trains_as_one_process(folder: Path, name: str, stage: int) -> None:
    run, (losses, norms, state) = found(folder, f"{name}-{stage}"), alone(folder, MATRIX[name])
    assert run["losses"] == pytest.approx(losses, rel=1e-5)
    assert run["norms"] == pytest.approx(norms, rel=1e-5)
    assert_same_weights(run["state"], state, 2e-4 if "adamw" in MATRIX[name].optimizer else 1e-5)


@pytest.mark.parametrize("name", ONLY_3)
def test_stage_3_takes_every_net(folder: Path, name: str) -> None:
    run, (losses, norms, state) = found(folder, name), alone(folder, ONLY_3[name])
    assert run["losses"] == pytest.approx(losses, rel=1e-5)
    assert run["norms"] == pytest.approx(norms, rel=1e-5)
    assert_same_weights(run["state"], state, 2e-4 if "adamw" in ONLY_3[name].optimizer else 1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_leaves_the_packed_bytes_alone(folder: Path, stage: int) -> None:
    run, (losses, norms, state) = found(folder, f"bf16-{stage}"), alone(folder, BF16)
    assert run["losses"] == pytest.approx(losses, rel=1e-3)
    assert run["norms"] == pytest.approx(norms, rel=1e-2)
    assert_same_weights(run["state"], state, 1e-2)  # bytes: bit for bit
    assert {t.dtype for t in state.values()} == {torch.uint8, torch.bfloat16, torch.float32}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", EIGHT_BIT)
def test_8_bit_states_follow_the_shards(folder: Path, name: str, stage: int) -> None:
    run, (losses, _, _) = found(folder, f"{name}-{stage}"), alone(folder, EIGHT_BIT[name])
    assert run["losses"] == pytest.approx(losses, rel=1e-3)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_run_goes_on_bit_for_bit(folder: Path, optimizer: str, stage: int) -> None:
    run = found(folder, f"resumes-{optimizer}-{stage}")
    assert run["resumed"] == run["went on"]
    assert all(torch.equal(run["again"][name], tensor) for name, tensor in run["state"].items())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", ["loss", "norm"])
def test_what_is_not_finite_on_one_rank_stops_all(folder: Path, what: str, stage: int) -> None:
    run = found(folder, f"{what}-{stage}")
    named = "gradient norm" if what == "norm" else "loss"
    assert run["said"] == [f"the {named} is not finite, got nan; no parameter has been changed"] * 2
    assert run["moved"] == []


def test_stage_3_shards_every_byte_and_lets_go_of_what_it_gathers(folder: Path) -> None:
    run = found(folder, "shards")
    assert len(run["sizes"]) == 2 * 7 * 3  # blocks, linears, tensors of each
    for name, (whole_size, part, gathered) in run["sizes"].items():
        assert (part, gathered) == (-(-whole_size // 2), 0), name
    assert run["local"] == pytest.approx(run["total"] / 2, rel=0.02)
    assert run["left"] == run["local"]
    assert run["peak"] <= run["local"] + 2 * max(run["blocks"])  # a whole block is two parts
    assert run["kept"] == [0] * len(run["sizes"])
    # each adapted linear at once, in forward and again in backward; and norms, embedding, head
    assert run["forward"] >= 14
    assert run["backward"] >= 14


@pytest.mark.parametrize("stage", STAGES)
def test_the_adapter_is_exported_whole(folder: Path, stage: int) -> None:
    from safetensors.torch import load_file

    found(folder, f"exports-{stage}")
    exported = load_file(folder / f"adapter-{stage}" / "adapter_model.safetensors")
    _, _, state = alone(folder, Case("lora", steps=2))
    trained = {name.replace(".default", ""): t for name, t in state.items() if ".lora_" in name}
    assert_same_weights({name.removeprefix("base_model.model."): t for name, t in exported.items()}, trained, 1e-4)


def test_checkpoints_that_do_not_fit_are_refused(folder: Path) -> None:
    other, absent, damaged = found(folder, "refused")
    assert other == (
        f"{folder / 'other'}: ZeRO stage 2 on 4 ranks wrote this, got stage 3 on 2\n"
        "help: resume on 4 ranks with stage 2; fsdp resumes on any number of ranks, or start anew from the adapter or "
        "model in the checkpoint's folder (lora_model_dir, base_model)"
    )
    assert absent.startswith(f"{folder / 'nothing'}: the checkpoint has no shards of ZeRO\nhelp: ")
    assert damaged.startswith(f"{folder / 'refused'}: the shards cannot be read, got ")
