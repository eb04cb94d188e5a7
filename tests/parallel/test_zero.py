"""What ZeRO alone has to show, beside test_contract.py. One pair of processes runs all checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_zoo import tiny_config
from pair import run_pair
from torch import Tensor
from transformers import AutoModelForCausalLM
from zero_cases import CPU, Case, make, train, whole
from zero_checks import exports, refuses_checkpoints, refuses_what_is_not_finite, resumes, shards, trains

from ftkit.parallel.backend import World
from ftkit.parallel.single import SingleBackend

STAGES = (1, 2, 3)
CPU_OFFLOAD = {"device": "cpu", "pin_memory": True}
OFFLOADED = Case("qlora", zero={"offload_optimizer": CPU_OFFLOAD}, steps=4)
ONLY_3: Mapping[str, Case] = {
    "reentrant": Case("qlora", checkpointing="reentrant", steps=4, optimizer="sgd"),
    "checkpointed": Case("qlora", checkpointing="plain", steps=4, optimizer="sgd"),
    "full-checkpointed": Case("full", checkpointing="plain", steps=4, optimizer="sgd", accumulation=2),
    "dora-checkpointed": Case("dora", checkpointing="plain", steps=4, optimizer="sgd"),
    "embeddings-checkpointed": Case("embeddings", checkpointing="plain", steps=4, optimizer="sgd"),
    "hqq": Case("hqq", steps=4, optimizer="sgd"),
    "tied": Case("full", model="llama-tied", steps=4, optimizer="sgd"),
    "dora": Case("dora", steps=4, optimizer="sgd"),
    "embeddings": Case("embeddings", steps=4, optimizer="sgd"),
    "parameters-offloaded": Case("qlora", steps=4, zero={"offload_param": CPU_OFFLOAD}),
    "int8": Case("int8", steps=4, optimizer="sgd"),
    "new-rows": Case("new-rows", steps=4, optimizer="sgd"),
    "new-rows-tied": Case("new-rows", model="llama-tied", steps=4, optimizer="sgd"),
    "mixtral": Case("full", model="mixtral", steps=4, optimizer="sgd"),
}
DROPOUT: Mapping[str, tuple[Case, int]] = {
    "dropout": (Case("dropout", steps=4), 2),
    "dropout-checkpointed": (Case("dropout", steps=4, checkpointing="plain"), 3),
    "dropout-reentrant": (Case("dropout", steps=4, checkpointing="reentrant"), 3),
}
EIGHT_BIT = Case("wide-qlora", optimizer="adamw_bnb_8bit", model="wide", rate=1e-3)
RESUMED = {"adamw": "adamw_torch", "8bit": "adamw_bnb_8bit"}


def every_run() -> dict[str, tuple[Case, int]]:
    runs = {f"offloaded-{stage}": (OFFLOADED, stage) for stage in STAGES}
    return runs | {name: (case, 3) for name, case in ONLY_3.items()} | DROPOUT


def every_check(folder: Path) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Name -> what each rank calls, and with what."""
    checks: dict[str, tuple[Any, tuple[Any, ...]]] = {
        name: (trains, (case, stage, folder / case.model)) for name, (case, stage) in every_run().items()
    }
    for stage in STAGES:
        for name, optimizer in RESUMED.items():
            case = replace(EIGHT_BIT, optimizer=optimizer)
            place = folder / f"saved-{name}-{stage}"
            checks[f"resumes-{name}-{stage}"] = (resumes, (case, stage, folder / case.model, place))
        lora = (Case("lora"), stage, folder / "llama")
        checks[f"loss-{stage}"] = (refuses_what_is_not_finite, (*lora, True))
        checks[f"norm-{stage}"] = (refuses_what_is_not_finite, (*lora, False))
        checks[f"exports-{stage}"] = (exports, (*lora, folder / f"adapter-{stage}"))
    checks["refused"] = (refuses_checkpoints, (*lora, folder / "refused"))
    checks["shards"] = (shards, (Case("qlora"), folder / "deep"))
    return checks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tiny models."""
    folder = tmp_path_factory.mktemp("zero")
    for name in ("llama", "llama-tied", "mixtral"):
        save_model(tiny_config(name), folder / name)
    deep = tiny_config("llama")  # for the peak of loading: many blocks, each a small part of the whole
    deep.hidden_size, deep.intermediate_size, deep.head_dim, deep.num_hidden_layers = 256, 512, 64, 8
    save_model(deep, folder / "deep")
    wide = tiny_config("llama")  # large enough for 8-bit states, which begin at 4096 elements
    wide.hidden_size, wide.intermediate_size, wide.head_dim = 64, 96, 16
    save_model(wide, folder / "wide")
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What rank 0 of a pair of processes found in every check."""
    return {name: ranks[0] for name, ranks in run_pair(every_check(folder), folder / "pair").items()}


def save_model(config: Any, folder: Path) -> None:
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    net.save_pretrained(folder)


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
def test_states_in_host_memory_change_nothing(folder: Path, found: Any, stage: int) -> None:
    run, (losses, norms, state) = found[f"offloaded-{stage}"], alone(folder, OFFLOADED)
    assert run["losses"] == pytest.approx(losses, rel=1e-5)
    assert run["norms"] == pytest.approx(norms, rel=1e-5)
    assert_same_weights(run["state"], state, 2e-4)


@pytest.mark.parametrize("name", ONLY_3)
def test_stage_3_takes_every_net(folder: Path, found: Any, name: str) -> None:
    run, (losses, norms, state) = found[name], alone(folder, ONLY_3[name])
    assert run["losses"] == pytest.approx(losses, rel=1e-5)
    assert run["norms"] == pytest.approx(norms, rel=1e-5)
    assert_same_weights(run["state"], state, 2e-4 if "adamw" in ONLY_3[name].optimizer else 1e-5)


@pytest.mark.parametrize("name", ["dropout-checkpointed", "dropout-reentrant"])
def test_recomputing_in_stage_3_draws_the_same_dropout(found: Any, name: str) -> None:
    plain, run = found["dropout"], found[name]
    assert run["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert run["norms"] == pytest.approx(plain["norms"], rel=1e-5)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("optimizer", RESUMED)
def test_a_resumed_run_goes_on_bit_for_bit(found: Any, optimizer: str, stage: int) -> None:
    run = found[f"resumes-{optimizer}-{stage}"]
    assert run["resumed"] == run["went on"]
    assert all(torch.equal(run["again"][name], tensor) for name, tensor in run["state"].items())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", ["loss", "norm"])
def test_what_is_not_finite_on_one_rank_stops_all(found: Any, what: str, stage: int) -> None:
    run = found[f"{what}-{stage}"]
    named = "gradient norm" if what == "norm" else "loss"
    assert run["said"] == [f"the {named} is not finite, got nan; no parameter has been changed"] * 2
    assert run["moved"] == []


def test_stage_3_shards_every_byte_and_lets_go_of_what_it_gathers(found: Any) -> None:
    run = found["shards"]
    assert len(run["sizes"]) == 8 * 7 * 3  # blocks, linears, tensors of each
    for name, (whole_size, part, gathered) in run["sizes"].items():
        assert (part, gathered) == (-(-whole_size // 2), 0), name
    assert run["local"] == pytest.approx(run["total"] / 2, rel=0.02)
    assert run["left"] == run["local"]
    tables, largest = 2 * 97 * 256 * 4, 256 * 512 * 4  # embedding and head; one linear as the checkpoint holds it
    block = (run["total"] - tables) / 8
    assert run["local"] < run["peak"] <= run["local"] + block + largest
    assert run["kept"] == [0] * len(run["sizes"])
    # twice a step: each adapted linear at once (bytes and floats apart), the norms, embedding and head
    assert (run["forward"], run["backward"]) == (8 * (7 * 2 + 2) + 1 + 2,) * 2


@pytest.mark.parametrize("stage", STAGES)
def test_the_adapter_is_exported_whole(folder: Path, found: Any, stage: int) -> None:
    from safetensors.torch import load_file

    assert found[f"exports-{stage}"] == {}
    exported = load_file(folder / f"adapter-{stage}" / "adapter_model.safetensors")
    _, _, state = alone(folder, Case("lora", steps=2))
    trained = {name.replace(".default", ""): t for name, t in state.items() if ".lora_" in name}
    assert_same_weights({name.removeprefix("base_model.model."): t for name, t in exported.items()}, trained, 1e-4)


def test_checkpoints_that_do_not_fit_are_refused(folder: Path, found: Any) -> None:
    other, absent, damaged = found["refused"]
    assert other == (
        f"{folder / 'other'}: ZeRO stage 2 on 4 ranks wrote this, got stage 3 on 2\n"
        "help: resume on 4 ranks with stage 2; fsdp resumes on any number of ranks, or start anew from the adapter or "
        "model in the checkpoint's folder (lora_model_dir, base_model)"
    )
    assert absent.startswith(f"{folder / 'nothing'}: the checkpoint has no shards of ZeRO\nhelp: ")
    assert damaged.startswith(f"{folder / 'refused'}: the shards cannot be read, got ")
