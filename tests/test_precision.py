from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ftkit.hardware import Machine, fit_to_machine
from ftkit.model.build import build_net
from ftkit.model.load import load_net
from ftkit.model.plan import plan_model
from ftkit.parallel.backend import World
from ftkit.parallel.single import SingleBackend
from ftkit.precision import POLICIES, policy_name, precision
from ftkit.recipe import Recipe, load_recipe
from tiny import tiny_model

AMPERE, OLD_GPU, CPU = Machine("cuda", bf16=True), Machine("cuda", bf16=False), Machine("cpu", bf16=False)
IDS = torch.arange(5, 25)[None]


def recipe_with(folder: Path, more: str) -> Recipe:
    (folder / "recipe.yml").write_text(
        f"base_model: {folder}/model\ndatasets: [{{path: rows.jsonl, type: sharegpt}}]\noutput_dir: out\n{more}\n"
    )
    return load_recipe(folder / "recipe.yml")


@pytest.mark.parametrize(
    ("keys", "ampere", "old_gpu", "cpu"),
    [
        ("", "fp32", "fp32", "fp32"),
        ("bf16: true", "mp_bf16_autocast", "fp32", "fp32"),
        ("bf16: auto", "mp_bf16_autocast", "mp_fp16_autocast", "fp32"),
        ("bf16: full", "bf16", "fp32", "fp32"),
        ("bf16: false", "fp32", "fp32", "fp32"),
        ("fp16: true", "mp_fp16_autocast", "mp_fp16_autocast", "fp32"),
        ("precision: fp32\nbf16: auto", "fp32", "fp32", "fp32"),
        ("precision: bf16_buffers_autocast", "bf16_buffers_autocast", "fp32", "fp32"),
        ("precision: mp_fp16_autocast", "mp_fp16_autocast", "mp_fp16_autocast", "fp32"),
    ],
)
def test_keys_and_machines_mean_one_policy(tmp_path: Path, keys: str, ampere: str, old_gpu: str, cpu: str) -> None:
    recipe = recipe_with(tmp_path, keys)
    for machine, wanted in ((AMPERE, ampere), (OLD_GPU, old_gpu), (CPU, cpu)):
        fitted, substitutions = fit_to_machine(recipe, machine)
        assert policy_name(fitted, fast_bf16=machine.bf16) == wanted
        asked = policy_name(recipe, fast_bf16=machine.bf16)
        assert asked == wanted or any(s.key in ("bf16", "fp16", "precision") for s in substitutions), "said, not silent"


def test_a_policy_and_the_coarser_keys_clash(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="`precision` and `fp16` both say how numbers are held"):
        recipe_with(tmp_path, "precision: bf16\nfp16: true")


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("keys", ["", "adapter: qlora\nload_in_4bit: true\nlora_target_linear: true\nlora_r: 4"])
def test_a_policy_sets_dtypes_and_never_touches_bytes_or_buffers(tmp_path: Path, name: str, keys: str) -> None:
    tiny_model(tmp_path / "model")
    recipe = recipe_with(tmp_path, f"precision: {name}\n{keys}")
    numbers, policy = precision(recipe, fast_bf16=True), POLICIES[name]

    def net_of(dtype: torch.dtype, trained: torch.dtype) -> Any:
        plan = plan_model(recipe.model, recipe.quantization, recipe.adapter)
        net, cpu = build_net(plan, dtype=dtype, trained=trained), torch.device("cpu")
        backend = SingleBackend(World(0, 1, 0, 1, cpu))
        load_net(net, plan, backend.place_block, device=cpu, dtype=dtype)(net)
        return net

    net, exact = net_of(numbers.weights, numbers.trained), net_of(torch.float32, torch.float32)
    for key, parameter in net.named_parameters():
        if parameter.dtype == torch.uint8:
            assert torch.equal(parameter, exact.get_parameter(key)), key
        else:
            assert parameter.dtype == (policy.trained if parameter.requires_grad else policy.frozen), key
    assert {buffer.dtype for key, buffer in net.named_buffers() if "inv_freq" in key} == {torch.float32}
    with torch.autocast("cpu", policy.autocast or torch.bfloat16, enabled=policy.autocast is not None):
        loss = net(input_ids=IDS, labels=IDS, use_cache=False).loss
    wanted = exact(input_ids=IDS, labels=IDS, use_cache=False).loss
    torch.testing.assert_close(loss.float(), wanted, rtol=1e-2, atol=0)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters() if p.requires_grad)
