"""From a recipe's DeepSpeed mapping to the dict that `deepspeed.initialize` and `deepspeed.zero.Init` take.

The recipe decides what both could say: batch, accumulation, clipping, precision, optimizer. There is no `bf16` section
in what DeepSpeed gets: with one it would cast the net and keep masters of its own, while ftkit's trained weights are
float32 masters already, its frozen ones have the dtype they were loaded in, and autocast rounds products. Without a
section DeepSpeed casts nothing, and every stage takes a net of float32, bfloat16 and bytes together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftkit.errors import BackendError
from ftkit.recipe.section.deepspeed_keys import HONOURED, HONOURED_OF_ZERO, unserved_keys

BUCKET = 500_000_000  # elements; DeepSpeed's default


def stage_of(given: Mapping[str, Any]) -> int:
    """The ZeRO stage that a mapping asks for; 0 shards nothing."""
    zero = given.get("zero_optimization")
    return int(zero.get("stage", 0)) if isinstance(zero, Mapping) else 0


def deepspeed_dict(given: Mapping[str, Any], *, max_norm: float = 0.0, num_trained: int = 0) -> dict[str, Any]:
    """Return DeepSpeed's configuration for the recipe's mapping `given`, as plain dicts.

    Args:
        given: what `deepspeed_config` found; "auto" stands for DeepSpeed's default or the recipe's value.
        max_norm: clips gradients; 0 does not. Always written: DeepSpeed clips at 1.0 where nothing is said.
        num_trained: elements that take gradients; no bucket is larger, since buckets are allocated whole.

    Raises:
        BackendError: keys that ftkit cannot honour, all named.
    """
    refuse(given)
    zero = said(given["zero_optimization"], HONOURED_OF_ZERO)
    if zero.pop("cpu_offload", False):
        zero.setdefault("offload_optimizer", {"device": "cpu"})
    zero.setdefault("reduce_bucket_size", min(BUCKET, max(num_trained, 1)))
    # small constants of quantized weights are sharded as well; DeepSpeed's default keeps up to 100,000 elements whole
    zero.setdefault("stage3_param_persistence_threshold", 0)
    return {
        "steps_per_print": None,
        "zero_force_ds_cpu_optimizer": False,  # its own CPU Adam has to be compiled first
        **said(given, HONOURED),
        "zero_allow_untested_optimizer": True,
        "train_micro_batch_size_per_gpu": 1,  # DeepSpeed only counts samples with it
        "gradient_accumulation_steps": 1,  # the backend says which micro-batch is the last
        "gradient_clipping": float(max_norm),
        "zero_optimization": zero,
    }


def refuse(given: Mapping[str, Any]) -> None:
    """Raise one error naming every key that asks for something ftkit does not do; `ftkit check` says the same."""
    wrong = [f"{key.path}: {key.shown}{f' ({key.reason})' if key.reason else ''}" for key in unserved_keys(given)]
    if wrong:
        raise BackendError(
            "ftkit does not serve these DeepSpeed keys\n  " + "\n  ".join(wrong),
            where="deepspeed",
            help="take them out of the DeepSpeed configuration",
        )


def said(mapping: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    """The entries under `keys` that say something, as plain dicts and lists."""
    return {key: plain(value) for key, value in mapping.items() if key in keys and value not in ("auto", None)}


def plain(value: Any) -> Any:
    """`value` as JSON would have it; entries that are `auto` are left out, whole floats are integers."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items() if inner != "auto"}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
