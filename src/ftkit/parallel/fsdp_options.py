"""What `fsdp` and `fsdp_config` mean for FSDP2 on so many processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftkit.errors import RecipeError
from ftkit.parallel.backend import World

if TYPE_CHECKING:
    from ftkit.recipe.section.backend import BackendSection

KEEPS = {"shard_grad_op", "hybrid_shard_zero2"}  # gathered once a step: kept from forward to backward
SEVERAL_COPIES = {"hybrid_shard", "hybrid_shard_zero2"}


@dataclass(frozen=True, slots=True)
class FsdpOptions:
    """How a net is shared out.

    Args:
        reshard: free a block's gathered parameters behind its forward pass; a number frees down to so many ranks.
        copies: whole copies of the net, each shared out over its own ranks.
        offload: keep parts, gradients and optimizer state in host memory.
        wrap: classes of modules inside a block that are units of their own.
    """

    reshard: bool | int = True
    copies: int = 1
    offload: bool = False
    wrap: frozenset[str] = frozenset()


def fsdp_options(section: BackendSection, world: World) -> FsdpOptions:
    """Read the recipe's keys.

    Raises:
        RecipeError: the numbers of copies and shards do not multiply to the number of processes.
    """
    words = {word.lower().removeprefix("_") for word in section.fsdp}
    config = section.fsdp_config
    words.add(str(config.get("sharding_strategy") or "").lower().removeprefix("_"))
    keeps = bool(words & KEEPS) or config.get("reshard_after_forward") is False
    given = config.get("reshard_after_forward")
    reshard: bool | int = given if isinstance(given, int) and not isinstance(given, bool) else not keeps
    named = config.get("transformer_layer_cls_to_wrap") or ()
    wrap = frozenset(named.replace(",", " ").split() if isinstance(named, str) else named)
    offload = bool(config.get("offload_params") or "offload" in words) and world.device.type == "cuda"
    return FsdpOptions(reshard, copies_of(section, world, hybrid=bool(words & SEVERAL_COPIES)), offload, wrap)


def copies_of(section: BackendSection, world: World, *, hybrid: bool) -> int:
    """How many whole copies: as the recipe says, else one a node for the hybrid strategies, else one."""
    copies, shards = section.dp_replicate_size, section.dp_shard_size
    if copies is None and shards is None:
        return world.size // world.local_size if hybrid else 1
    copies = copies or world.size // (shards or world.size)
    shards = shards or world.size // copies
    if copies * shards != world.size:
        raise RecipeError(
            f"{copies} copies of {shards} shards need {copies * shards} processes, got {world.size}",
            where="dp_shard_size" if section.dp_shard_size else "dp_replicate_size",
            help="start that many processes, or let the two multiply to the number there is",
        )
    return copies
