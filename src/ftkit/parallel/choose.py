"""Which backend a recipe asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftkit.catalog import BACKENDS, load
from ftkit.parallel.backend import Backend, BackendRequest, World

if TYPE_CHECKING:
    from ftkit.recipe.section.backend import BackendSection


def build_backend(request: BackendRequest, world: World) -> Backend:
    """Make the backend of a recipe; the process group comes later.

    Raises:
        RecipeError: its keys contradict each other or the number of processes.
    """
    backend: Backend = load(BACKENDS[backend_name(request.section, world)])(world, request)
    return backend


def backend_name(section: BackendSection, world: World) -> str:
    """Its name in the catalog: what the recipe says, else DDP where there are several processes."""
    if section.deepspeed:
        return "zero"
    if shards(section):
        return "fsdp"
    return "ddp" if world.size > 1 else "single"


def shards(section: BackendSection) -> bool:
    """Whether the keys of FSDP ask for anything to be sharded: `no_shard` is DDP."""
    return bool(section.fsdp) and "no_shard" not in section.fsdp
