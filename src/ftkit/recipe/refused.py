"""Keys that are known and refused: what they ask for is not in ftkit. Each with the reason and what to do instead.

A row: reason, alternative, keys. A value that asks for nothing (false, 0, empty, or one in HARMLESS) is only a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Refusal(NamedTuple):
    """Why a key is refused, and what to do instead."""

    reason: str
    help: str


REMOVE = "remove it"
ROWS: tuple[tuple[str, str, str], ...] = (
    (
        "GPTQ weights are not supported",
        "take the unquantized model with load_in_4bit: true and adapter: qlora",
        "gptq",
    ),
    (
        "preference and reinforcement training are not supported yet",
        "train on the chosen answers with datasets of type chat_template, or use another tool for this stage",
        "rl rl_beta dpo_beta dpo_use_weighting dpo_label_smoothing dpo_norm_loss orpo_alpha cpo_alpha simpo_gamma"
        " kto_desirable_weight kto_undesirable_weight trl ebft precompute_ref_log_probs rl_adapter_ref_model"
        " reward_model process_reward_model center_rewards_coefficient num_labels",
    ),
    (
        "restarts of an adapter (ReLoRA) are not supported",
        "train one adapter, with a larger lora_r if it is too small",
        "relora relora_steps jagged_restart_steps jagged_restart_warmup_steps jagged_restart_anneal_steps",
    ),
    (
        "training random layers (LISA) is not supported",
        "use adapter: lora, or unfrozen_parameters",
        "lisa_n_layers lisa_step_interval lisa_layers_attribute",
    ),
    (
        "compression and 1-bit models are not supported",
        "train first, then quantize the result with the tool that serves it",
        "llmcompressor use_onebitllms",
    ),
    ("diffusion language models are not supported", REMOVE, "diffusion"),
    (
        "images, audio and video are not supported yet",
        "use the text model of the same family, without a processor",
        "processor_type image_size image_resize_algorithm freeze_mm_modules",
    ),
    (
        "rows are not streamed while training: steps and packs are known before the first step",
        "name the data under `datasets` with type: completion; prepared on disk, it need not fit in memory",
        "pretraining_dataset",
    ),
    (
        "training from random weights is not supported yet",
        "remove it to start from the model's weights",
        "reinit_weights",
    ),
    (
        "shifted sparse attention is not supported",
        "remove it; sample_packing keeps long documents affordable",
        "s2_attention landmark_attention xpos_rope",
    ),
    (
        "tensor and context parallelism are not supported yet",
        "use fsdp or deepspeed, which shard the model over all processes",
        "tensor_parallel_size context_parallel_size sequence_parallel_degree",
    ),
    (
        "experts are not spread over processes by themselves",
        "use fsdp or deepspeed, which shard experts like all other weights",
        "expert_parallel_size",
    ),
    (
        "optimizers over projected gradients are not supported",
        "use adapter: lora, or optimizer: adamw_bnb_8bit, to save memory",
        "optim_target_modules",
    ),
    (
        "rates for parts of the model are not supported yet",
        "set learning_rate for all, or loraplus_lr_ratio for B of LoRA",
        "lr_groups embedding_lr embedding_lr_scale",
    ),
    (
        "the optimizer that has this setting is not supported",
        "put settings of the optimizer under optim_args",
        "adam_beta3 adam_epsilon2",
    ),
    ("distillation is not supported", REMOVE, "kd_trainer kd_ce_alpha kd_alpha kd_temperature"),
    (
        "choosing layers by their spectrum is not supported",
        "list them under unfrozen_parameters",
        "spectrum_top_fraction spectrum_model_name",
    ),
    (
        "evaluation by benchmark is not part of a run yet",
        "evaluate the exported model with lm-eval afterwards",
        "lm_eval_tasks do_bench_eval bench_dataset bench_split max_bench_samples",
    ),
    ("trainers of one's own are not supported", REMOVE, "trainer_cls"),
    (
        "ftkit does not change the batch by itself",
        "`ftkit plan` says which micro_batch_size fits",
        "auto_find_batch_size",
    ),
    (
        "embeddings are only grown, as far as new tokens need",
        "remove it",
        "shrink_embeddings embeddings_skip_upcast mean_resizing_embeddings",
    ),
    (
        "initializations of an adapter other than zero are not supported yet",
        "remove it",
        "peft_init_lora_weights peft_layer_replication",
    ),
    (
        "a sweep over learning rates is not supported",
        "give learning_rate=... on the command line of several runs",
        "log_sweep_min_lr log_sweep_max_lr",
    ),
    ("it is not supported", "put div_factor under lr_scheduler_kwargs", "lr_div_factor"),
    ("documents are shuffled and packed freely", REMOVE, "curriculum_sampling sample_packing_sequentially"),
    (
        "parts are named with the data set they belong to",
        "write shards and shards_idx in the entry under `datasets`",
        "dataset_shard_num dataset_shard_idx",
    ),
    ("profiling is not part of a run", "remove it; metrics.jsonl has the time of each step", "profiler_steps"),
    (
        "this tracker is not supported",
        "use wandb, mlflow or use_tensorboard; metrics.jsonl is always written",
        "use_swanlab swanlab_project swanlab_experiment_name swanlab_description swanlab_mode swanlab_workspace"
        " swanlab_log_model swanlab_log_completions swanlab_completion_log_interval swanlab_completion_max_buffer"
        " use_otel_metrics otel_metrics_host otel_metrics_port",
    ),
    (
        "ftkit does not start machines",
        "remove it, and start the run with `accelerate launch -m ftkit.train` on the machine you have",
        "runpod use_ray ray_num_workers",
    ),
    ("ftkit does not serve models", REMOVE, "vllm"),
    (
        "this belongs to a file that describes a cloud, not to a recipe",
        "keep it in the cloud tool's own file",
        "provider project_name secrets gpu gpu_count node_count volumes branch dockerfile_commands memory timeout"
        " memory_preprocess timeout_preprocess",
    ),
    (
        "this belongs to a configuration of accelerate, not to a recipe",
        "pass that file to `accelerate launch --config_file`",
        "compute_environment distributed_type downcast_bf16 gpu_ids machine_rank main_training_function mixed_precision"
        " num_machines num_processes rdzv_backend same_network tpu_env tpu_use_cluster tpu_use_sudo use_cpu",
    ),
    (
        "the batch of all processes follows from the others",
        "set micro_batch_size and gradient_accumulation_steps",
        "global_batch_size",
    ),
    (
        "dropout inside the model is the model's own",
        "set lora_dropout, or attention_dropout under model_config",
        "dropout",
    ),
    ("values of the model's configuration have their own place", "put it under model_config", "moe_balance_type"),
    (
        "no tool of this dialect reads it",
        "remove it, or set today's keys for what it means",
        "optimization model_init_kwargs datasets_path output_file full_finetune small_r large_r small_model_dim"
        " large_model_dim small_model_intermediate_size large_model_intermediate_size",
    ),
)
REFUSED: Mapping[str, Refusal] = MappingProxyType(
    {key: Refusal(reason, help) for reason, help, keys in ROWS for key in keys.split()}
)
# Sections of other tools: the training itself is the same without them, so they are warnings.
OF_OTHER_TOOLS = frozenset({"runpod", "vllm", "use_ray", "ray_num_workers", "expert_parallel_size"})
HARMLESS: Mapping[str, Any] = MappingProxyType(
    {
        "tensor_parallel_size": 1,
        "context_parallel_size": 1,
        "sequence_parallel_degree": 1,
        "expert_parallel_size": 1,
        "num_machines": 1,
        "dataset_shard_num": 1,
    }
)


OFF: tuple[Any, ...] = (False, 0, "", "no", "false", "off", "n", "none", [], {})


def asks_for_nothing(key: str, value: Any) -> bool:
    """Whether a refused key is off."""
    word = value.lower() if isinstance(value, str) else value
    return word in OFF or value == HARMLESS.get(key, object())


# Keys of an entry of `datasets` that belong to refused kinds of training.
PAIRS = Refusal(
    "preference data is not supported yet", "use a data set of plain conversations, or another tool for this stage"
)
PAIR_KEYS = (
    "field_chosen",
    "field_rejected",
    "field_prompt",
    "field_completion",
    "step_separator",
    "max_completion_length",
    "train_on_last_step_only",
)
REFUSED_OF_DATASETS: Mapping[str, Refusal] = MappingProxyType(dict.fromkeys(PAIR_KEYS, PAIRS))
