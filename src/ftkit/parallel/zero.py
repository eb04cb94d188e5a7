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

import functools
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.optim import Optimizer

from ftkit.errors import BackendError
from ftkit.optional import need
from ftkit.parallel.backend import Backend, BackendRequest, GroupBuilder, OptimizerFactory, World
from ftkit.parallel.ddp import DdpBackend
from ftkit.parallel.gradients import refuse_not_finite
from ftkit.parallel.loss_scale import LossScale
from ftkit.parallel.process_group import all_reduced, disconnect
from ftkit.parallel.zero_compile import compile_ahead
from ftkit.parallel.zero_config import deepspeed_dict, stage_of
from ftkit.parallel.zero_module import EngineModule
from ftkit.parallel.zero_shards import load_zero, save_zero

WEIGHTS = 3  # the stage that shards weights


def build(world: World, request: BackendRequest) -> Backend:
    """Make the backend of a DeepSpeed mapping; a file's name has become its contents by now. Stage 0 is DDP.

    Raises:
        BackendError: the mapping asks for what ftkit does not serve, or DeepSpeed is not installed.
    """
    given = request.section.deepspeed
    assert isinstance(given, Mapping)
    return ZeroBackend(world, given) if stage_of(given) else DdpBackend(world)


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
        self.scale = LossScale()  # stays off: float16 is substituted under DeepSpeed
        self.loading = deepspeed_dict(given)
        self.deepspeed = deepspeed_module(world)

    def place_block(self, block: nn.Module, fill: Callable[[nn.Module], None]) -> None:
        """Fill the block; in stage 3 each rank keeps its part of every parameter."""
        fill(block)
        self.partition(block)

    def partition(self, module: nn.Module) -> None:
        """Leave on each rank its part of what `module` still holds whole."""
        self.compile_once()
        if self.stage == WEIGHTS:
            self.deepspeed.zero.Init(module=module, config_dict_or_path=self.loading)

    @functools.cache  # noqa: B019 - a backend lives as long as its process
    def compile_once(self) -> None:
        """Have what DeepSpeed compiles ready; the ranks know each other by now."""
        compile_ahead(self.deepspeed, self.world)

    def finish(
        self,
        net: nn.Module,
        fill: Callable[[nn.Module], None],
        build_groups: GroupBuilder,
        build_optimizer: OptimizerFactory,
        max_norm: float,
    ) -> tuple[nn.Module, Optimizer]:
        """Fill and partition the rest, and let DeepSpeed take net and optimizer over."""
        refuse_whole_matrices(build_optimizer)
        fill(net)
        self.partition(net)
        if self.stage == WEIGHTS:
            self.gather_adapters_whole(net)
        self.net = net
        with whole_shapes(net):
            groups = build_groups(net)
            num_trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
        optimizer = build_optimizer(groups)
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

    def micro_batch(self, *, last: bool) -> AbstractContextManager[object]:
        """`backward` says all there is to say."""
        return nullcontext()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradients of one micro-batch."""
        self.loss += loss.detach()
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * self.world.size)

    def step(self) -> float:
        """Refuse a loss that is not finite on any rank, then let DeepSpeed clip, check the norm, step and clear."""
        loss = float(self.reduce(self.loss, "sum"))
        self.loss.zero_()
        refuse_not_finite(0.0, loss, {})
        self.engine.step()
        applied = self.engine.was_step_applied()
        norm = float(self.engine.get_global_grad_norm()) if applied else math.nan
        refuse_not_finite(norm, loss, {})
        return norm

    def reduce(self, value: Tensor, op: Literal["sum", "max", "min"]) -> Tensor:
        """Return `value` combined over all ranks."""
        return all_reduced(value, op)

    def save_shards(self, folder: Path) -> None:
        """Write trainable parameters and optimizer state in DeepSpeed's own files."""
        save_zero(self.engine, folder, self.world.size, self.stage)

    def load_shards(self, folder: Path) -> tuple[str, ...]:
        """Read them back at the same number of ranks and the same stage: everything is exactly as it was."""
        load_zero(self.engine, folder, self.world.size, self.stage)
        return ()

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
        disconnect()


def deepspeed_module(world: World) -> ModuleType:
    """DeepSpeed, quiet, with the two variables that it wants to find in the environment."""
    os.environ.setdefault("LOCAL_RANK", str(world.local_rank))
    os.environ.setdefault("DS_ACCELERATOR", world.device.type)
    deepspeed = need("deepspeed", extra="deepspeed", purpose="deepspeed", error=BackendError)
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(logging.WARNING)
    logger.addFilter(lambda record: "untested" not in record.getMessage())  # of optimizers: ftkit's tests run them
    # 0.19.8 calls two functions of torch by the names they had before 2.13, and torch says so at every call
    warnings.filterwarnings("ignore", "`torch.distributed.[a-z_]+_tensor` is deprecated", FutureWarning)
    return deepspeed


def refuse_whole_matrices(build_optimizer: OptimizerFactory) -> None:
    """Raise for an optimizer whose step depends on the shape of a weight."""
    if not build_optimizer.elementwise:
        raise BackendError(
            "this optimizer looks at whole matrices, and ZeRO gives an optimizer flat slices of them",
            where="optimizer",
            help="take adamw_torch or one of 8 bits, or leave deepspeed out and train with DDP",
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
