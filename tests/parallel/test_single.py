from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ftkit.catalog import OPTIMIZERS
from ftkit.errors import BackendError, CheckpointError
from ftkit.optim.build import build_optimizer
from ftkit.optim.groups import group_builder
from ftkit.parallel.backend import World
from ftkit.parallel.optimizer_state import read_state
from ftkit.parallel.single import SingleBackend
from ftkit.recipe.section.optimization import OptimizationSection

CPU = World(0, 1, 0, 1, torch.device("cpu"))


def small_net(*, seed: int = 0) -> nn.Sequential:
    """One matrix large enough for 8-bit states (from 4096 elements), one of odd size below that, and a frozen one."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 65), nn.Tanh(), nn.Linear(65, 7), nn.Linear(7, 7))
    net[3].requires_grad_(False)
    return net


def backend_of(net: nn.Module, optimizer: str = "sgd", *, max_norm: float = 0.0, **keys: Any) -> SingleBackend:
    section = OptimizationSection(optimizer=optimizer, **{"learning_rate": 1e-2, **keys})
    backend = SingleBackend(CPU)
    build = build_optimizer(section, CPU.device)
    backend.finish(net, lambda net: None, group_builder(section), build, max_norm)
    return backend


def train(net: nn.Module, backend: SingleBackend, steps: range, *, micro_batches: int = 2) -> list[float]:
    norms = []
    for step in steps:
        for index in range(micro_batches):
            torch.manual_seed(100 * step + index)
            backend.backward(net(torch.randn(4, 64)).square().mean(), last=index == micro_batches - 1)
        norms.append(backend.step())
    return norms


@pytest.mark.parametrize("max_norm", [0.0, 0.05])
def test_steps_and_clips_as_torch_does(max_norm: float) -> None:
    net, plain = small_net(), small_net()
    norms = train(net, backend_of(net, max_norm=max_norm), range(4))
    trainable = [p for p in plain.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=1e-2)
    for step in range(4):
        for index in range(2):
            torch.manual_seed(100 * step + index)
            plain(torch.randn(4, 64)).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(trainable, max_norm or float("inf"))
        assert norms[step] == pytest.approx(float(norm), rel=1e-6)
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda p: p.sum() * float("nan"), "the loss is not finite, got nan (first in 0.weight)"),
        (lambda p: p.sum() * 0 + float("inf"), "the loss is not finite, got inf"),
        (lambda p: ((p * 0).sum()).sqrt(), "the gradient norm is not finite, got nan (first in 0.weight)"),
    ],
)
def test_what_is_not_finite_moves_nothing(loss: Any, text: str) -> None:
    net = small_net()
    backend = backend_of(net, "adamw_torch", weight_decay=0.1)
    train(net, backend, range(1))
    before = [p.detach().clone() for p in net.parameters()]
    state = {name: t.clone() for name, t in read_state(backend.optimizer, backend.trainable).items()}
    backend.backward(loss(net[0].weight), last=True)
    with pytest.raises(BackendError) as caught:
        backend.step()
    assert caught.value.what == f"{text}; no parameter has been changed"
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))
    assert all(torch.equal(t, state[name]) for name, t in read_state(backend.optimizer, backend.trainable).items())


@pytest.mark.parametrize("optimizer", sorted({target: name for name, target in OPTIMIZERS.items()}.values()))
def test_every_optimizer_goes_on_from_its_saved_state_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    net = small_net()
    backend = backend_of(net, optimizer, weight_decay=0.1)
    train(net, backend, range(3))
    backend.save_shards(tmp_path / "shards")
    other = small_net(seed=1)
    other[3].load_state_dict(net[3].state_dict())  # frozen: read from the base model
    again = backend_of(other, optimizer, weight_decay=0.1)
    again.load_shards(tmp_path / "shards")
    saved, loaded = (read_state(b.optimizer, b.trainable) for b in (backend, again))
    assert saved.keys() == loaded.keys()
    assert all(
        torch.equal(tensor, loaded[name]) and tensor.dtype == loaded[name].dtype for name, tensor in saved.items()
    )
    assert train(net, backend, range(3, 6)) == train(other, again, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_eight_bit_states_are_saved_in_eight_bits(tmp_path: Path) -> None:
    net = small_net()
    backend = backend_of(net, "adamw_bnb_8bit")
    train(net, backend, range(1))
    state = read_state(backend.optimizer, backend.trainable)
    assert state["0.weight/state1"].dtype == torch.uint8
    assert state["2.weight/state1"].dtype == torch.float32
    assert state["0.weight/step:int"].item() == 1


def test_a_parameter_that_never_took_a_step_has_no_state(tmp_path: Path) -> None:
    net = small_net()
    backend = backend_of(net, "adamw_torch")
    backend.save_shards(tmp_path / "shards")
    backend_of(small_net(), "adamw_torch").load_shards(tmp_path / "shards")


def test_shards_of_another_net_are_refused_whole(tmp_path: Path) -> None:
    net = small_net()
    backend_of(net).save_shards(tmp_path / "shards")
    other = nn.Sequential(nn.Linear(64, 66), nn.Linear(3, 3))
    with pytest.raises(CheckpointError) as caught:
        backend_of(other).load_shards(tmp_path / "shards")
    assert str(caught.value) == (
        f"{tmp_path / 'shards'}: the checkpoint does not fit the net\n"
        "  not in the checkpoint: 1.bias\n"
        "  not in the checkpoint: 1.weight\n"
        "  not trained now: 2.bias\n"
        "  not trained now: 2.weight\n"
        "  0.weight is (65, 64) in the checkpoint, got (66, 64)\n"
        "  0.bias is (65,) in the checkpoint, got (66,)"
    )


def test_no_shards_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint has no shards"):
        backend_of(small_net()).load_shards(tmp_path / "shards")


def test_shards_that_are_damaged_are_named(tmp_path: Path) -> None:
    backend = backend_of(small_net())
    backend.save_shards(tmp_path / "shards")
    (file,) = (tmp_path / "shards").glob("*.distcp")
    file.unlink()
    with pytest.raises(CheckpointError, match="shards: the shards cannot be read, got FileNotFoundError"):
        backend.load_shards(tmp_path / "shards")


def test_shards_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        CheckpointError, match=r"shards: the shards cannot be written, got (NotADirectory|FileExists)Error"
    ):
        backend_of(small_net()).save_shards(tmp_path / "file" / "shards")


def test_whole_tensors_come_one_at_a_time_by_name() -> None:
    net = small_net()
    names = ["3.weight", "0.bias"]
    assert [(name, tensor.shape) for name, tensor in backend_of(net).full_state(names)] == [
        ("3.weight", (7, 7)),
        ("0.bias", (65,)),
    ]
