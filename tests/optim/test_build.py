from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from ftkit.catalog import OPTIMIZERS
from ftkit.errors import RecipeError
from ftkit.optim.build import build_optimizer
from ftkit.optim.groups import build_groups
from ftkit.parallel.optimizer_state import read_state, write_state
from ftkit.recipe.section.optimization import OptimizationSection

CPU = torch.device("cpu")
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


class Quadratic(nn.Module):
    """Squared distance to a target, over a matrix (large enough for 8-bit states) and a vector."""

    def __init__(self, rows: int = 64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(rows, 96, generator=generator))
        self.vector = nn.Parameter(torch.randn(96, generator=generator))

    def forward(self) -> torch.Tensor:
        return self.matrix.square().mean() + self.vector.square().mean()


def section(**keys: Any) -> OptimizationSection:
    return OptimizationSection.model_validate({"learning_rate": 0.05, **keys})


def build(net: nn.Module, **keys: Any) -> Optimizer:
    chosen = section(**keys)
    device = next(net.parameters()).device
    return build_optimizer(chosen, device)(build_groups(net, chosen))


def steps(net: nn.Module, optimizer: Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        loss = net()
        loss.backward()
        optimizer.step()


def resume_and_compare(net: Quadratic, optimizer: Optimizer, name: str) -> None:
    """Carry the state over to a copy as a checkpoint does; both go on alike."""
    other = copy.deepcopy(net)
    resumed = build(other, optimizer=name)
    write_state(resumed, dict(other.named_parameters()), read_state(optimizer, dict(net.named_parameters())))
    steps(net, optimizer, 3)
    steps(other, resumed, 3)
    assert torch.equal(net.matrix, other.matrix)
    assert torch.equal(net.vector, other.vector)


RATES = {"sgd": 5.0}  # the others' steps do not depend on the gradient's size


@on_devices
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_the_catalog_goes_down_a_quadratic(name: str, device: str) -> None:
    net = Quadratic().to(device)
    before = net().item()
    steps(net, build(net, optimizer=name, learning_rate=RATES.get(name, 0.05)), 30)
    assert net().item() < 0.8 * before


@on_devices
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_every_optimizer_goes_through_a_checkpoints_names(name: str, device: str) -> None:
    net = Quadratic().to(device)
    optimizer = build(net, optimizer=name)
    steps(net, optimizer, 3)
    resume_and_compare(net, optimizer, name)


@on_devices
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torchs_own_state_dict_goes_out_and_in(name: str, device: str) -> None:
    net = Quadratic().to(device)
    optimizer = build(net, optimizer=name)
    steps(net, optimizer, 3)
    other = copy.deepcopy(net)
    resumed = build(other, optimizer=name)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(net, optimizer, 3)
    steps(other, resumed, 3)
    assert torch.equal(net.matrix, other.matrix)
    assert torch.equal(net.vector, other.vector)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name.startswith("paged")])
def test_paged_states_go_through_a_checkpoints_names(name: str) -> None:
    net = Quadratic(rows=2048).to("cuda")  # bitsandbytes pages states of 100,000 numbers and more
    optimizer = build(net, optimizer=name)
    steps(net, optimizer, 3)
    assert optimizer.state[net.matrix]["state1"].is_paged
    resume_and_compare(net, optimizer, name)


def test_eight_bit_states_are_eight_bit() -> None:
    net = Quadratic()
    optimizer = build(net, optimizer="adamw_8bit")
    steps(net, optimizer, 1)
    assert optimizer.state[net.matrix]["state1"].dtype == torch.uint8
    assert optimizer.state[net.vector]["state1"].dtype == torch.float32


def test_muon_has_the_matrices_and_adamw_the_rest() -> None:
    net = Quadratic()
    optimizer = build(net, optimizer="muon", optim_args={"momentum": 0.9})
    steps(net, optimizer, 1)
    assert set(optimizer.state[net.matrix]) == {"momentum_buffer"}
    assert {"exp_avg", "exp_avg_sq"} <= set(optimizer.state[net.vector])
    assert optimizer.param_groups[0]["momentum"] == 0.9
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = net.matrix.detach().clone(), net.vector.detach().clone()
    steps(net, optimizer, 1)
    assert torch.equal(net.matrix, before[0])  # the loop's rate reaches both
    assert torch.equal(net.vector, before[1])


def test_the_recipes_keys_reach_the_optimizer() -> None:
    keys = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.1, "learning_rate": 1e-3}
    matrices, vectors = build(Quadratic(), optimizer="adamw_torch", **keys).param_groups
    assert (matrices["betas"], matrices["eps"], matrices["lr"]) == ((0.8, 0.95), 1e-6, 1e-3)
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)


def test_optim_args_win_over_the_recipes_keys() -> None:
    args = {"betas": [0.5, 0.6], "amsgrad": True}
    group = build(Quadratic(), optimizer="adamw_torch", optim_args=args).param_groups[0]
    assert (group["betas"], group["amsgrad"]) == ((0.5, 0.6), True)


def error(**keys: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        build_optimizer(section(**keys), CPU)
    return str(caught.value)


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    assert error(optimizer="adamw_torh") == (
        "optimizer: unknown optimizer, got adamw_torh\nhelp: use adamw_torch or adamw_hf or adamw_torch_fused"
    )


def test_every_option_that_is_not_taken_is_named_before_any_parameter_exists() -> None:
    args = {"momentum": 0.9, "nesterof": True, "lr": 1.0}
    assert error(optimizer="sgd", optim_args=args) == (
        "optim_args: sgd does not take these options, got nesterof (unknown), lr (has the key learning_rate)\n"
        "help: take them out; it knows momentum, dampening, nesterov, maximize, foreach, differentiable, fused"
    )


def test_an_option_that_the_name_says_is_refused() -> None:
    assert "optim_bits (the name adamw_bnb_8bit says it)" in error(
        optimizer="adamw_bnb_8bit", optim_args={"optim_bits": 32}
    )


def test_a_bad_value_is_the_recipes_fault() -> None:
    text = error(optimizer="adamw_torch", adam_beta2=1.5)
    assert text.startswith("optimizer: adamw_torch refuses its options")
    assert "Invalid beta parameter at index 1: 1.5" in text
