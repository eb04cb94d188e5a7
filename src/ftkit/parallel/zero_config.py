"""From a recipe's DeepSpeed mapping to the dict that `deepspeed.initialize` and `deepspeed.zero.Init` take.

The recipe decides what both could say: batch, accumulation, clipping, precision, optimizer. There is no `bf16` section
in what DeepSpeed gets: with one it would cast the net and keep masters of its own, while ftkit's trained weights are
float32 masters already, its frozen ones have the dtype they were loaded in, and autocast rounds products. Without a
section DeepSpeed casts nothing, and every stage takes a net of float32, bfloat16 and bytes together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ftkit.errors import BackendError

# Said by the recipe; that the two agree was checked when it was read.
OF_THE_RECIPE = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "bf16",
        "bfloat16",
        "fp16",
    }
)
# Passed on as they are.
HONOURED = frozenset(
    {
        "aio",
        "comms_logger",
        "communication_data_type",
        "dump_state",
        "flops_profiler",
        "gradient_predivide_factor",
        "memory_breakdown",
        "prescale_gradients",
        "steps_per_print",
        "wall_clock_breakdown",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
    }
)
HONOURED_OF_ZERO = frozenset(
    {
        "stage",
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "cpu_offload",
        "ignore_unused_parameters",
        "log_trace_cache_warnings",
        "memory_efficient_linear",
        "offload_optimizer",
        "offload_param",
        "overlap_comm",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "stage3_allgather_sequential",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_model_persistence_threshold",
        "stage3_module_granularity_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "stage3_use_all_reduce_for_fetch_params",
        "sub_group_size",
        "use_multi_rank_bucket_allreduce",
    }
)
# Say nothing here: ftkit writes the result itself, from whole tensors.
IDLE_OF_ZERO = frozenset({"stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"})
# Why a key that DeepSpeed knows cannot be honoured.
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "activation_checkpointing": "the recipe's gradient_checkpointing does that",
        "amp": "the recipe's bf16 says the precision",
        "optimizer": "the recipe's optimizer is used",
        "scheduler": "the recipe's lr_scheduler is used",
        "torch_autocast": "the recipe's bf16 says the precision",
        "zero_optimization.compute_grad_norm": "the norm is reported and checked in every step",
        "zero_optimization.zero_quantized_nontrainable_weights": "it would round the frozen weights once more",
        "zero_optimization.zero_quantized_weights": "it would round the weights of every layer once more",
        "zero_optimization.zero_quantized_gradients": "it would round the gradients",
    }
)
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
    """Raise one error naming every key that asks for something ftkit does not do."""
    zero = given.get("zero_optimization")
    assert isinstance(zero, Mapping)
    asked = {key: value for key, value in given.items() if key not in HONOURED | OF_THE_RECIPE | {"zero_optimization"}}
    asked |= {f"zero_optimization.{k}": v for k, v in zero.items() if k not in HONOURED_OF_ZERO | IDLE_OF_ZERO}
    wrong = [f"{key}: {shown(value)}{reason(key)}" for key, value in asked.items() if speaks(key, value)]
    wrong += [
        f"zero_optimization.{key}.device: {device} (weights and states are kept on GPUs or in host memory)"
        for key in ("offload_param", "offload_optimizer")
        if (device := dict(zero.get(key) or {}).get("device", "none")) not in ("none", "cpu")
    ]
    if wrong:
        raise BackendError(
            "ftkit does not serve these DeepSpeed keys\n  " + "\n  ".join(wrong),
            where="deepspeed",
            help="take them out of the DeepSpeed configuration",
        )


def speaks(key: str, value: Any) -> bool:
    """Whether a key that is not honoured asks for anything: `false`, 0, `auto` and `enabled: false` do not."""
    if key == "zero_optimization.compute_grad_norm":
        return value is False
    if key == "zero_optimization.zero_hpz_partition_size":
        return value not in ("auto", 0, 1)
    if isinstance(value, Mapping):
        enabled = value.get("enabled")
        return enabled not in (False, "auto") and any(speaks("", inner) for inner in value.values())
    return bool(value) and value != "auto"


def reason(key: str) -> str:
    """Why, in brackets; nothing where there is no more to say."""
    return f" ({REASONS[key]})" if key in REASONS else ""


def shown(value: Any) -> str:
    """A value in one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    return "a mapping" if isinstance(value, Mapping) else str(value)


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
