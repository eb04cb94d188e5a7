"""Which keys of a DeepSpeed configuration ftkit passes on, which the recipe says itself, and which it cannot honour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

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
OFF_THE_HOST = "weights and states are kept on GPUs or in host memory"


@dataclass(frozen=True, slots=True)
class UnservedKey:
    """A key that asks for what ftkit does not do: its place (dots go deeper), its value in words, and why, if known."""

    path: str
    shown: str
    reason: str


def unserved_keys(given: Mapping[str, Any]) -> Iterator[UnservedKey]:
    """Yield the keys of `given` that would be without effect or change what is learned."""
    zero = given.get("zero_optimization")
    inside: Mapping[str, Any] = zero if isinstance(zero, Mapping) else {}
    asked = {key: value for key, value in given.items() if key not in HONOURED | OF_THE_RECIPE | {"zero_optimization"}}
    asked |= {f"zero_optimization.{k}": v for k, v in inside.items() if k not in HONOURED_OF_ZERO | IDLE_OF_ZERO}
    for key, value in asked.items():
        if speaks(key, value):
            yield UnservedKey(key, in_words(value), REASONS.get(key, ""))
    for name in ("offload_param", "offload_optimizer"):
        part = inside.get(name)
        device = part.get("device", "none") if isinstance(part, Mapping) else "none"
        if device not in ("none", "cpu", "auto"):
            yield UnservedKey(f"zero_optimization.{name}.device", str(device), OFF_THE_HOST)


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


def in_words(value: Any) -> str:
    """A value in one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    return "a mapping" if isinstance(value, Mapping) else str(value)
