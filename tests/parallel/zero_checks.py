"""What a rank under ZeRO does and finds; each returns plain values for test_zero.py to compare with `single`."""

from __future__ import annotations

import shutil
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from zero_cases import Case, Ready, make, micro_batches, train, whole

from ftkit.errors import BackendError, CheckpointError
from ftkit.objective.sft import sft_loss
from ftkit.parallel.backend import World
from ftkit.parallel.zero import ZeroBackend
from ftkit.save.export import write_adapter

FORCED = dict.fromkeys(
    ("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size"), 0
)  # tiny nets release nothing otherwise


def backend_of(world: World, case: Case, stage: int) -> ZeroBackend:
    return ZeroBackend(world, {"zero_optimization": {"stage": stage, **(FORCED if stage == 3 else {}), **case.zero}})


def steps(case: Case, ready: Ready, numbers: range) -> list[list[float]]:
    return train(case, ready, numbers, dist.get_rank(), dist.get_world_size())


def everyone(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def trains(world: World, case: Case, stage: int, model: Path) -> dict[str, Any]:
    """Losses, norms and the weights at the end."""
    ready = make(case, model, backend_of(world, case, stage))
    losses, norms = steps(case, ready, range(case.steps))
    state = whole(ready)
    ready.backend.engine.destroy()
    return {"losses": losses, "norms": norms, "state": state}


def resumes(world: World, case: Case, stage: int, model: Path, folder: Path) -> dict[str, Any]:
    """Three steps, saved, three more; and these three again from what was saved."""
    first = make(case, model, backend_of(world, case, stage))
    steps(case, first, range(3))
    first.backend.save_shards(folder)
    went_on, state = steps(case, first, range(3, 6)), whole(first)
    first.backend.engine.destroy()
    second = make(case, model, backend_of(world, case, stage))
    second.backend.load_shards(folder)
    resumed, again = steps(case, second, range(3, 6)), whole(second)
    second.backend.engine.destroy()
    return {"went on": went_on, "resumed": resumed, "state": state, "again": again}


def refuses_checkpoints(world: World, case: Case, stage: int, model: Path, folder: Path) -> list[str]:
    """What is said of checkpoints of another world, of none, and of a damaged one."""
    ready = make(case, model, backend_of(world, case, stage))
    ready.backend.save_shards(folder)
    note, texts = folder / "zero.json", []
    other = folder.with_name("other")
    if dist.get_rank() == 0:
        shutil.copytree(folder, other)
        (other / "zero.json").write_text('{"ranks": 4, "stage": 2}')
        for file in folder.rglob("*optim_states.pt"):
            file.unlink()
    dist.barrier()
    assert note.is_file()
    for place in (other, folder.with_name("nothing"), folder):
        try:
            ready.backend.load_shards(place)
        except CheckpointError as error:
            texts.append(str(error))
    ready.backend.engine.destroy()
    return texts


def refuses_what_is_not_finite(world: World, case: Case, stage: int, model: Path, in_loss: bool) -> dict[str, Any]:
    """A step with a number on rank 1 that is not one, after a good step: what each rank says, and whether it moved."""
    ready = make(case, model, backend_of(world, case, stage))
    steps(case, ready, range(1))
    before = whole(ready)
    (batch,) = micro_batches(case, 1, dist.get_rank())
    if in_loss:
        loss, _ = sft_loss(ready.module, batch)
        loss = loss * (float("nan") if dist.get_rank() else 1.0)
    else:  # the gradient of a root at zero is infinite
        outputs = ready.module(input_ids=batch.input_ids, use_cache=False)
        loss = outputs.logits.sum() if dist.get_rank() == 0 else (outputs.logits * 0).sum().sqrt()
    ready.backend.backward(loss, last=True)
    try:
        ready.backend.step()
        said = "nothing"
    except BackendError as error:
        said = error.what
    after = whole(ready)
    ready.backend.engine.destroy()
    return {"said": everyone(said), "moved": [name for name in before if not torch.equal(before[name], after[name])]}


class Gathers(TorchDispatchMode):
    """Counts what ranks send each other, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.count[func.__name__.split(".")[0]] += 1
        return func(*args, **(kwargs or {}))

    @property
    def gathered(self) -> int:
        return sum(number for name, number in self.count.items() if "allgather" in name)


def shards(world: World, case: Case, model: Path) -> dict[str, Any]:
    """Bytes of stage 3 by place and time, and how often it gathers."""
    backend, forward, backward = backend_of(world, case, 3), Gathers(), Gathers()
    peaks: list[int] = []
    with Allocations() as load:
        ready = make(case, model, backend, lambda: peaks.append(load.peak))
    net = ready.net
    sizes = {
        name: (p.ds_numel, p.ds_tensor.numel(), p.numel())
        for name, p in net.named_parameters()
        if p.dtype == torch.uint8
    }
    total, local = sum(p.ds_numel * p.element_size() for p in net.parameters()), bytes_of(net.parameters())
    steps(case, ready, range(2))  # from the third on DeepSpeed knows what is used when, and might keep it
    (batch,) = micro_batches(case, 2, dist.get_rank())
    with forward:
        loss, _ = sft_loss(ready.module, batch)
    kept = [t.untyped_storage().nbytes() for t in saved_tensors(loss) if t.dtype == torch.uint8]
    with backward:
        backend.backward(loss, last=True)
    backend.step()
    left = bytes_of(net.parameters())
    backend.engine.destroy()
    return {
        "sizes": sizes,
        "total": total,
        "local": local,
        "peak": peaks[0],
        "kept": kept,
        "left": left,
        "forward": forward.gathered,
        "backward": backward.gathered,
    }


class Allocations(TorchDispatchMode):
    """Most bytes that tensors made inside held at one time; a storage counts until it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                storage = tensor.untyped_storage()
                if storage.nbytes() and storage._cdata not in self.known:
                    self.known.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return outputs

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def bytes_of(parameters: Any) -> int:
    """Bytes of the parameters that are here: what is gathered, and the parts that are kept."""
    storages = {}
    for parameter in parameters:
        for tensor in (parameter, getattr(parameter, "ds_tensor", None)):
            if tensor is not None and not tensor.is_meta:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def saved_tensors(loss: Tensor) -> Iterator[Tensor]:
    """Every tensor that the graph behind `loss` keeps for autograd functions written in Python."""
    seen, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield from (tensor for tensor in getattr(node, "saved_tensors", ()) if tensor is not None)
        todo += [following for following, _ in node.next_functions]


def exports(world: World, case: Case, stage: int, model: Path, folder: Path) -> dict[str, Any]:
    """The adapter as the run's end writes it."""
    from model_zoo import plan_of
    from zero_cases import KINDS

    ready = make(case, model, backend_of(world, case, stage))
    steps(case, ready, range(2))
    config = plan_of(model, **KINDS[case.kind]).adapter
    assert config is not None
    write_adapter(ready.backend, ready.net, config, folder)
    ready.backend.engine.destroy()
    return {}
