"""Every parameter shared out over the ranks by torch's FSDP2 (`fully_shard`), packed bytes like any other.

A block is filled whole, shared out, and its whole tensors freed before the next is read. In the forward pass a block's
parameters are gathered when it is called and freed behind it (`full_shard`), or kept for backward (`shard_grad_op`).
Embedding and head are units of their own; when they are tied they stay with the root, which keeps what it gathered.

`hybrid_shard` keeps several copies, each shared out over one node (or over `dp_shard_size` ranks): gathering stays
inside the node, only gradients cross it.

Source: Zhao et al. 2023, "PyTorch FSDP"; torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ftkit.errors import BackendError
from ftkit.parallel.backend import BackendRequest, GroupBuilder, OptimizerFactory, World
from ftkit.parallel.containers import shardable
from ftkit.parallel.fsdp_options import FsdpOptions, fsdp_options
from ftkit.parallel.gradients import agreed, clip, refuse_not_finite, total_norm
from ftkit.parallel.local_shards import local, local_shards, part_number
from ftkit.parallel.loss_scale import LossScale
from ftkit.parallel.process_group import all_reduced, disconnect
from ftkit.parallel.sharded_files import load_sharded, save_sharded

FEW = 0.1  # trained share of a net up to which whole gradients are kept between micro-batches instead of sent


def build(world: World, request: BackendRequest) -> FsdpBackend:
    """Make the backend that `fsdp` and `fsdp_config` describe.

    Raises:
        RecipeError: the numbers do not fit the processes.
    """
    return FsdpBackend(world, fsdp_options(request.section, world))


class FsdpBackend:
    """See `Backend` in parallel/backend.py."""

    def __init__(self, world: World, options: FsdpOptions) -> None:
        self.scale = LossScale()
        self.world, self.options = world, options

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The ranks: one axis to shard over, and one of copies before it if there are several."""
        kind, copies = self.world.device.type, self.options.copies
        if copies == 1:
            return init_device_mesh(kind, (self.world.size,), mesh_dim_names=("shard",))
        return init_device_mesh(kind, (copies, self.world.size // copies), mesh_dim_names=("copy", "shard"))

    def place_block(self, block: nn.Module, fill: Callable[[nn.Module], None]) -> None:
        """Fill the block, share it out, and let its whole tensors go."""
        fill(block)
        for module in [m for m in block.modules() if m is not block and type(m).__name__ in self.options.wrap]:
            # torch warns of in-place operations on what such a unit returns; transformers' blocks add out of place
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
            self.shard(module, reshard=self.options.reshard)
        self.shard(block, reshard=self.options.reshard)

    def shard(self, module: nn.Module, *, reshard: bool | int | None) -> None:
        """Make `module` a unit: gathered and freed together."""
        shardable(module)
        policy: dict[str, Any] = {"offload_policy": CPUOffloadPolicy()} if self.options.offload else {}
        unit = fully_shard(module, mesh=self.mesh, reshard_after_forward=reshard, **policy)
        unit.set_gradient_divide_factor(1.0)  # the loss is divided by the tokens of all ranks already: a sum, no mean
        unit.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it sums

    def finish(
        self,
        net: nn.Module,
        fill: Callable[[nn.Module], None],
        build_groups: GroupBuilder,
        build_optimizer: OptimizerFactory,
        max_norm: float,
    ) -> tuple[nn.Module, Optimizer]:
        """Fill and share out embedding, head and the rest; the optimizer steps the parts that lie here."""
        refuse_unshardable(build_optimizer)
        fill(net)
        for module in ends_of(net):
            self.shard(module, reshard=self.options.reshard)
        self.shard(net, reshard=None)
        self.net, self.max_norm = cast(FSDPModule, net), max_norm
        parameters = dict(net.named_parameters())
        self.shards = local_shards({name: p for name, p in parameters.items() if p.requires_grad})
        trained = sum(p.numel() for p in self.shards.whole.values())
        self.sends_each = trained > FEW * sum(p.numel() for p in parameters.values())
        groups, self.elementwise = build_groups(net), build_optimizer.elementwise
        self.optimizer = build_optimizer(self.shards.groups(groups) if self.elementwise else groups)
        self.loss = torch.zeros((), device=self.world.device)  # this rank's share of this step's
        return net, self.optimizer

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        """Gradients travel with the last micro-batch alone, unless keeping them whole until then takes much memory."""
        self.net.set_is_last_backward(last)
        self.net.set_requires_gradient_sync(last or self.sends_each)
        return nullcontext()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add gradients."""
        self.loss += loss.detach()
        self.scale.up(loss).backward()  # type: ignore[no-untyped-call]

    def step(self) -> float:
        """Clip, refuse what is not finite, step, clear: each rank its own parts, by one norm."""
        self.shards.take_gradients()
        gradients = {name: p.grad for name, p in self.shards.parts.items()}
        norm_here = total_norm((g for g in gradients.values() if g is not None), self.world.device)
        norm, loss = agreed(norm_here, self.loss, parts=self.options.copies)
        norm = self.scale.down(gradients.values(), norm)
        if self.scale.skips(norm, loss):
            return self.clear(norm)
        refuse_not_finite(norm, loss, gradients)
        clip(self.shards.parts.values(), self.max_norm, norm)
        self.optimizer.step()
        return self.clear(norm)

    def clear(self, norm: float) -> float:
        """Begin the next step without gradients."""
        self.shards.clear_gradients()
        self.loss.zero_()
        return norm

    def reduce(self, value: Tensor, op: Literal["sum", "max", "min"]) -> Tensor:
        """Combine over ranks."""
        return all_reduced(value, op)

    def save_shards(self, folder: Path) -> None:
        """Every rank writes its parts."""
        save_sharded(folder, self.shards, self.optimizer, elementwise=self.elementwise)
        if self.world.is_main:
            self.scale.save(folder)

    def load_shards(self, folder: Path) -> tuple[str, ...]:
        """Every rank reads its parts of what any number of ranks wrote."""
        self.scale.load(folder)
        return load_sharded(folder, self.shards, self.optimizer, elementwise=self.elementwise)

    def full_state(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Gather tensors one at a time; rank 0 gets them on the CPU."""
        tensors = cast(nn.Module, self.net).state_dict(keep_vars=True)
        for name in names:
            whole = gathered_whole(tensors[name].detach(), self.world.device)
            if self.world.is_main:
                yield name, whole.cpu()

    def close(self) -> None:
        """Leave the group."""
        disconnect()


def refuse_unshardable(build_optimizer: OptimizerFactory) -> None:
    """Raise for an optimizer that cannot step shared parameters."""
    if not build_optimizer.shardable:
        raise BackendError(
            "this optimizer cannot step parameters that FSDP has shared out",
            where="optimizer",
            help="take adamw_torch, muon or one of 8 bits, or leave fsdp out and train with DDP",
        )


def ends_of(net: nn.Module) -> list[nn.Module]:
    """Embedding and head, where they share nothing: tied ones cannot be in two units."""
    found = [getattr(net, f"get_{end}_embeddings", lambda: None)() for end in ("input", "output")]
    modules = [module for module in found if module is not None]
    owned = [{id(p) for p in module.parameters()} for module in modules]
    tied = len(owned) == 2 and owned[0] & owned[1]
    return [] if tied else [module for module, parameters in zip(modules, owned, strict=True) if parameters]


def gathered_whole(tensor: Tensor, device: torch.device) -> Tensor:
    """The whole of a tensor, on every rank; parts kept on the host are brought to `device` first.

    By a plain collective: `DTensor.full_tensor` ends in a segmentation fault over gloo on a GPU (torch 2.11).
    """
    if not isinstance(tensor, DTensor):
        return tensor
    _, size = part_number(tensor)
    part, rows = local(tensor), -(-tensor.shape[0] // size)  # as torch.chunk cuts; the last parts may be short
    padded = part.new_zeros((rows, *part.shape[1:]), device=device)
    padded[: part.shape[0]] = part
    whole = padded.new_empty((rows * size, *part.shape[1:]))
    dist.all_gather_into_tensor(whole, padded, group=tensor.device_mesh.get_group("shard"))
    return whole[: tensor.shape[0]]
