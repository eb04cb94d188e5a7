"""The single backend on a GPU: states that only exist there (paged, fused), and a bfloat16 run resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ftkit.catalog import OPTIMIZERS
from ftkit.optim.build import build_optimizer
from ftkit.optim.groups import group_builder
from ftkit.parallel.backend import World
from ftkit.parallel.optimizer_state import read_state
from ftkit.parallel.single import SingleBackend
from ftkit.recipe.section.optimization import OptimizationSection

pytestmark = pytest.mark.gpu


def backend_of(seed: int, optimizer: str, dtype: torch.dtype) -> tuple[nn.Module, SingleBackend]:
    device = torch.device("cuda", 0)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 65), nn.Tanh(), nn.Linear(65, 7)).to(device, dtype)
    section = OptimizationSection(optimizer=optimizer, learning_rate=1e-2, weight_decay=0.1)
    backend = SingleBackend(World(0, 1, 0, 1, device))
    backend.finish(net, lambda net: None, group_builder(section), build_optimizer(section, device), 1.0)
    return net, backend


def train(net: Any, backend: SingleBackend, steps: range) -> list[float]:
    norms = []
    for step in steps:
        torch.manual_seed(step)
        rows = torch.randn(4, 64, device="cuda", dtype=net[0].weight.dtype)
        backend.backward(nn.functional.dropout(net(rows), 0.1).square().mean(), last=True)
        norms.append(backend.step())
    return norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_every_optimizer_goes_on_from_its_saved_state_bit_for_bit(
    tmp_path: Path, optimizer: str, dtype: torch.dtype
) -> None:
    if optimizer.startswith("rmsprop_bnb") and dtype is torch.bfloat16:
        pytest.skip("bitsandbytes has no such kernel; what ftkit trains is float32 everywhere")
    net, backend = backend_of(0, optimizer, dtype)
    train(net, backend, range(3))
    backend.save_shards(tmp_path / "shards")
    other, again = backend_of(1, optimizer, dtype)
    again.load_shards(tmp_path / "shards")
    saved, loaded = (read_state(b.optimizer, b.trainable) for b in (backend, again))
    assert saved.keys() == loaded.keys()
    assert all(
        torch.equal(tensor, loaded[name]) and tensor.device == loaded[name].device for name, tensor in saved.items()
    )
    for ours, theirs in zip(backend.trainable.values(), again.trainable.values(), strict=True):
        for key, value in backend.optimizer.state[ours].items():
            assert getattr(again.optimizer.state[theirs][key], "is_paged", None) == getattr(value, "is_paged", None)
    assert train(net, backend, range(3, 6)) == train(other, again, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_4_bit_run_in_bfloat16_resumes_bit_for_bit(tmp_path: Path) -> None:
    import ftkit
    from ftkit.run import run
    from tiny import sharegpt_rows, tiny_model

    base, rows = tiny_model(tmp_path / "base"), sharegpt_rows(tmp_path / "rows.jsonl", repeat=3)

    def go(output: str, **more: Any) -> list[str]:
        keys: dict[str, Any] = {
            "base_model": base, "adapter": "qlora", "load_in_4bit": True, "lora_target_linear": True, "lora_r": 128,
            "lora_dropout": 0.05, "optimizer": "paged_adamw_8bit", "bf16": True, "micro_batch_size": 2,
            "sample_packing": True, "sequence_len": 128, "save_steps": 1, "max_steps": 6,
            "output_dir": tmp_path / output, "gradient_checkpointing": True, "learning_rate": 0.001,
            "dataset_prepared_path": tmp_path / "cache", **more,
        }  # fmt: skip
        recipe = tmp_path / f"{output}.yml"
        lines = [f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]
        recipe.write_text("\n".join([*lines, f"datasets: [{{path: {rows}, type: sharegpt}}]"]))
        run(ftkit.load_recipe(recipe))
        text = (tmp_path / output / "metrics.jsonl").read_text().splitlines()
        return [line.split(', "target_tokens"')[0] for line in text]

    whole = go("whole")
    resumed = go("resumed", resume_from_checkpoint=tmp_path / "whole" / "checkpoint-3")
    assert resumed[-3:] == whole[-3:]
    a, b = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("whole", "resumed"))
    assert a == b
