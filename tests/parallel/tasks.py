"""What a pair of ranks is asked beside its cases: what lies where, what a stop leaves, what a checkpoint gives back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Case, Running, byte_parameters, local_part, start, whole_size, with_steps
from torch import Tensor, nn

from ftkit.errors import BackendError
from ftkit.parallel.backend import World
from ftkit.recipe.section.backend import BackendSection

RESUMED = 6  # steps of the runs that are broken off at each


def resume_at_every_step(
    world: World, case_name: str, folder: Path, section: BackendSection, out: Path
) -> dict[str, Any]:
    """Losses of a whole run, and of its second part after each of its checkpoints."""
    case = with_steps(CASES[case_name], RESUMED)
    whole = start(case, world, folder, section)
    losses, notes = [], set()
    for step in range(RESUMED):
        losses += whole.train(range(step, step + 1))[0]
        whole.backend.save_shards(out / str(step + 1))
    parts = {}
    for done in range(1, RESUMED):
        again = start(case, world, folder, section)
        notes |= set(again.backend.load_shards(out / str(done)))
        parts[done] = again.train(range(done, RESUMED))[0]
        finish(again)
    finish(whole)
    return {"whole": losses, "resumed": parts, "notes": notes}


def continue_from(
    world: World,
    case_name: str,
    folder: Path,
    section: BackendSection,
    checkpoint: Path,
    done: int,
    until: int,
    out: Path,
) -> dict[str, Any]:
    """Go on from `checkpoint`, written by any number of ranks, and save again."""
    running = start(with_steps(CASES[case_name], RESUMED), world, folder, section)
    notes = running.backend.load_shards(checkpoint)
    losses, _ = running.train(range(done, until))
    running.backend.save_shards(out)
    finish(running)
    return {"losses": losses, "notes": notes}


def stop_together(world: World, folder: Path, section: BackendSection) -> dict[str, Any]:
    """One rank's loss is not a number: what every rank says, and whether anything moved."""
    running = start(with_steps(CASES["lora"], 3), world, folder, section)
    running.train(range(1))
    before = trainable(running.net)
    backend = running.backend
    work = running.batches.step(1)
    said = ""
    try:
        for index, batch in enumerate(work.micro_batches):
            last = index == len(work.micro_batches) - 1
            with backend.micro_batch(last=last):
                logits = running.stepper.module(input_ids=batch.input_ids, use_cache=False).logits
                loss = logits.float().square().mean()
                backend.backward(loss * float("nan") if world.rank == world.size - 1 else loss, last=last)
        backend.step()
    except BackendError as stop:
        said = stop.what
    after = trainable(running.net)
    finish(running)
    return {"said": said, "moved": [name for name in before if not torch.equal(before[name], after[name])]}


def what_lies_here(world: World, case: Case, folder: Path, section: BackendSection) -> dict[str, Any]:
    """Bytes of the net on this rank and in all, the peak of allocations during its load, and what a forward keeps."""
    gc.collect()
    with allocations(mapped=folder / case.model / "model.safetensors") as meter:
        running = start(case, world, folder, section)
    parameters = dict(running.net.named_parameters())
    sizes = {name: local_part(p).numel() * p.element_size() for name, p in parameters.items()}
    totals = {name: whole_size(p) * p.element_size() for name, p in parameters.items()}
    blocks = [sum(size for name, size in totals.items() if name.startswith(f"{block}.")) for block in running.blocks]
    stashed = alive_after_forward(running)
    after = byte_parameters(running.net)
    finish(running)
    return {
        "here": sum(sizes.values()),
        "total": sum(totals.values()),
        "bytes here": {name: size for name, size in sizes.items() if name in after},
        "bytes total": {name: size for name, size in totals.items() if name in after},
        "block": max(blocks),
        "peak": meter["peak"],
        "stashed": stashed,
    }


def alive_after_forward(running: Running) -> dict[str, int]:
    """How many byte parameters the forward pass stashed for backward, and the bytes still behind them after it."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.uint8:
            kept.append(tensor)
        return tensor

    batch = running.batches.step(0).micro_batches[0]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = running.stepper.module(input_ids=batch.input_ids, use_cache=False)
    alive = sum(tensor.untyped_storage().nbytes() for tensor in kept)
    del output
    return {"stashed": len(kept), "alive": alive}


@contextmanager
def allocations(*, mapped: Path) -> Iterator[dict[str, int]]:
    """Peak of bytes that torch held for tensors made inside, by its own reports.

    It reports the file that safetensors maps as if it were allocated; that entry is left out.
    """
    size, head = mapped.stat().st_size, 2**16
    meter = {"peak": 0}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        yield meter
    now = peak = 0
    events = profile.profiler.kineto_results.events()
    reports = [e for e in events if e.name() == "[memory]" and not size - head < abs(e.nbytes()) <= size]
    for event in sorted(reports, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    meter["peak"] = peak


def trainable(net: nn.Module) -> dict[str, Tensor]:
    """This rank's parts of what is trained, copied."""
    return {name: local_part(p).detach().clone() for name, p in net.named_parameters() if p.requires_grad}


def finish(running: Running) -> None:
    """Let a run go; the process group stays for the next."""
    running.batches.close()
    gc.collect()
