"""Faults DST-02 and DST-03: bytes that a copy rewrites, and weights that a second move quantizes again.

Under two processes: tests/parallel.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ftkit.catalog import QUANTIZERS, load
from ftkit.model.quantized import QuantizedLinear, frozen_bytes

EVERY_PATTERN = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.uint8)  # of 16 bits, NaNs included


def linear_of(name: str) -> QuantizedLinear:
    if name == "hqq":
        pytest.importorskip("hqq")
    torch.manual_seed(0)
    linear: QuantizedLinear = load(QUANTIZERS[name])(512, 512)
    linear.fill(torch.randn(512, 512))
    return linear


def bytes_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in net.named_parameters()}


def with_every_pattern() -> nn.Module:
    """A linear whose packed codes spell every pattern of 16 bits."""
    linear = linear_of("nf4")
    linear.weight = frozen_bytes(EVERY_PATTERN.clone())
    linear.absmax = frozen_bytes(EVERY_PATTERN[: linear.absmax.numel()].clone())
    return nn.Sequential(linear)


def through_a_file(net: nn.Module, folder: Path) -> nn.Module:
    save_file(net.state_dict(), folder / "bytes.safetensors")
    other = copy.deepcopy(net)
    for value in other.parameters():
        value.data.zero_()
    other.load_state_dict(load_file(folder / "bytes.safetensors"))
    return other


def under_autocast(net: nn.Module, folder: Path) -> nn.Module:
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.zeros(1, 512, requires_grad=True)).sum().backward()
    return net


PATHS: dict[str, Callable[[nn.Module, Path], nn.Module]] = {
    "cast to bf16": lambda net, folder: net.to(torch.bfloat16),
    "half and float": lambda net, folder: net.half().float(),
    "cast and move": lambda net, folder: net.to("cpu", torch.float16),
    "deep copy": lambda net, folder: copy.deepcopy(net),
    "file": through_a_file,
    "autocast": under_autocast,
}


@pytest.mark.parametrize("path", PATHS)
def test_dst_02_no_copy_changes_a_pattern_of_bits(path: str, tmp_path: Path) -> None:
    net = with_every_pattern()
    before = bytes_of(net)
    assert torch.equal(before["0.weight"], EVERY_PATTERN)
    after = bytes_of(PATHS[path](net, tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """This process as a group of one."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_dst_02_sharding_under_a_policy_of_bf16_changes_no_pattern() -> None:
    net = with_every_pattern()
    before = bytes_of(net)
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    assert isinstance(net, FSDPModule)
    net(torch.zeros(1, 512))
    net.unshard()
    gathered = bytes_of(net)
    net.reshard()
    sharded = {name: value.to_local() for name, value in net.named_parameters()}  # type: ignore[attr-defined]
    for name, value in before.items():
        assert gathered[name].dtype == torch.uint8
        assert torch.equal(gathered[name], value)
        assert torch.equal(sharded[name], value)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_dst_03_a_second_move_changes_nothing(name: str) -> None:
    linear, x = linear_of(name), torch.randn(3, 512)
    before, y = bytes_of(linear), linear(x)
    for _ in range(2):
        linear = linear.cpu().to(torch.device("cpu"))
        assert torch.equal(linear(x), y)
    moved = copy.deepcopy(linear).to("meta").to_empty(device="cpu")
    moved.load_state_dict(linear.state_dict())
    assert torch.equal(moved(x), y)
    assert all(torch.equal(value, before[key]) for key, value in bytes_of(moved).items())
