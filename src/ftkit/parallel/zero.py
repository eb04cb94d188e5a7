"""DeepSpeed's ZeRO: optimizer states (stage 1), gradients too (2), weights too (3) spread over all ranks.

What DeepSpeed forces, each found by running it (0.19.8):
  - it averages gradients over ranks, the loop wants their sum: the loss is multiplied by the number of ranks;
  - accumulation is told micro-batch by micro-batch (`set_gradient_accumulation_boundary`), so any number will do;
  - clipping, stepping and clearing happen inside `engine.step`. A norm that is not finite is so on every rank, and
    DeepSpeed then skips the step; a loss that is not finite is looked for here, on all ranks, before;
  - the engine turns off the autocast it is called under (`EngineModule` turns it on again inside);
  - stage 3 gathers a module's own parameters when the module is called. An adapter's layer reads its linear's weight
    without calling the linear, so each such layer is a leaf that gathers everything inside it (see there);
  - a partitioned parameter's shape is (0,), the net's is in `ds_shape`: parameter groups are built with `whole_shapes`.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from ftkit.errors import BackendError
from ftkit.optional import need
from ftkit.parallel.backend import GroupBuilder, OptimizerFactory, World
from ftkit.parallel.single import not_finite
from ftkit.parallel.zero_config import deepspeed_dict, stage_of
from ftkit.parallel.zero_module import EngineModule
from ftkit.parallel.zero_shards import load_zero, save_zero

WEIGHTS = 3  # the stage that shards weights
# Their update of one number looks at the whole matrix, and ZeRO hands them flat slices.
WHOLE_MATRICES = ("Adafactor", "MuonAndAdamW", "Muon")


class ZeroBackend:
    """See `Backend` in parallel/backend.py.

    Args:
        world: with the default process group already made.
        given: the recipe's DeepSpeed mapping.

    Raises:
        BackendError: the mapping asks for what ftkit does not serve, or DeepSpeed is not installed.
    """

    def __init__(self, world: World, given: Mapping[str, Any]) -> None:
        self.world, self.given, self.stage = world, given, stage_of(given)
        assert self.stage in (1, 2, 3)
        self.loading = deepspeed_dict(given)
        self.deepspeed = deepspeed_module(world)

    def place_block(self, block: nn.Module, fill: Callable[[nn.Module], None]) -> None:
        """Fill the block; in stage 3 each rank keeps its part of every parameter."""
        fill(block)
        self.partition(block)

    def partition(self, module: nn.Module) -> None:
        """Leave on each rank its part of what `module` still holds whole."""
        if self.stage == WEIGHTS:
            self.deepspeed.zero.Init(module=module, config_dict_or_path=self.loading)

    def finish(
        self,
        net: nn.Module,
        fill: Callable[[nn.Module], None],
        build_groups: GroupBuilder,
        build_optimizer: OptimizerFactory,
        max_norm: float,
    ) -> tuple[nn.Module, Optimizer]:
        """Fill and partition the rest, and let DeepSpeed take net and optimizer over."""
        fill(net)
        self.partition(net)
        if self.stage == WEIGHTS:
            self.gather_adapters_whole(net)
        self.net = net
        with whole_shapes(net):
            groups = build_groups(net)
            num_trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
        optimizer = build_optimizer(groups)
        refuse_whole_matrices(optimizer)
        config = deepspeed_dict(self.given, max_norm=max_norm, num_trained=num_trained)
        self.engine, *_ = self.deepspeed.initialize(
            model=net, optimizer=optimizer, config=config, dist_init_required=False
        )
        self.loss = torch.zeros((), device=self.world.device)  # of this step on this rank so far
        return EngineModule(self.engine, net, self.world.device.type), optimizer

    def gather_adapters_whole(self, net: nn.Module) -> None:
        """Make each adapted layer a leaf of stage 3: gathered with everything inside it when it is called.

        DeepSpeed reduces a leaf's gradients when those of its inputs are there. Where no input takes one it would come
        too early and reduce zeros, so the embedding's output asks for one, and an adapted embedding is no leaf.
        """
        layers = [m for m in net.modules() if isinstance(m, BaseTunerLayer)]
        for layer in layers:
            if not isinstance(layer.get_base_layer(), nn.Embedding):
                self.deepspeed.utils.set_z3_leaf_module(layer, True)
        if layers:
            net.enable_input_require_grads()  # type: ignore[operator]

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients of one micro-batch."""
        self.loss += loss.detach()
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * self.world.size)

    def step(self) -> float:
        """Refuse a loss that is not finite on any rank, then let DeepSpeed clip, check the norm, step and clear."""
        loss = float(self.reduce(self.loss, "sum"))
        self.loss.zero_()
        if not math.isfinite(loss):
            raise not_finite(loss, loss, None)
        self.engine.step()
        if not self.engine.was_step_applied():
            raise not_finite(loss, math.nan, None)
        return float(self.engine.get_global_grad_norm())

    def reduce(self, value: Tensor, op: Literal["sum", "max", "min"]) -> Tensor:
        """Return `value` combined over all ranks."""
        combined = value.clone()
        dist.all_reduce(combined, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op])
        return combined

    def save_shards(self, folder: Path) -> None:
        """Write trainable parameters and optimizer state in DeepSpeed's own files."""
        save_zero(self.engine, folder, self.world.size, self.stage)

    def load_shards(self, folder: Path) -> None:
        """Read them back at the same number of ranks and the same stage."""
        load_zero(self.engine, folder, self.world.size, self.stage)

    def full_state(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield whole tensors on the CPU of rank 0; in stage 3 the others take part in gathering them."""
        tensors = self.net.state_dict(keep_vars=True)
        for name in names:
            tensor = tensors[name]
            with self.deepspeed.zero.GatheredParameters([tensor], enabled=hasattr(tensor, "ds_id")):
                whole = tensor.detach().to("cpu", copy=True) if self.world.is_main else None
            if whole is not None:
                yield name, whole

    def close(self) -> None:
        """Take DeepSpeed's hooks off the net and leave the process group."""
        self.engine.destroy()
        dist.destroy_process_group()


def deepspeed_module(world: World) -> ModuleType:
    """DeepSpeed, quiet, with the one variable that it reads from the environment."""
    os.environ.setdefault("LOCAL_RANK", str(world.local_rank))
    deepspeed = need("deepspeed", extra="deepspeed", purpose="deepspeed", error=BackendError)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


def refuse_whole_matrices(optimizer: Optimizer) -> None:
    """Raise for an optimizer whose step depends on the shape of a weight."""
    name = type(optimizer).__name__
    if name in WHOLE_MATRICES:
        raise BackendError(
            f"{name} looks at whole matrices, and ZeRO hands an optimizer flat slices of them",
            where="optimizer",
            help="take adamw_torch or an 8-bit optimizer, or shard with fsdp",
        )


@contextmanager
def whole_shapes(net: nn.Module) -> Iterator[None]:
    """Give partitioned parameters the shape they have in the net; the values inside mean nothing and take no memory."""
    empty = {p: p.data for p in net.parameters() if hasattr(p, "ds_shape") and p.shape != p.ds_shape}
    for parameter in empty:
        parameter.data = parameter.data.new_empty(1).expand(parameter.ds_shape)
    try:
        yield
    finally:
        for parameter, data in empty.items():
            parameter.data = data
