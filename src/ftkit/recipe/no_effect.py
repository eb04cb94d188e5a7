"""Keys that are known and change nothing here: speed hints, other machinery's settings, labels. Each is noted by name.

A row: why, then the keys. They are notes; keys in WARNED say something that will not happen, so they are warnings.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ROWS: tuple[tuple[str, str], ...] = (
    (
        "ftkit picks its fused paths by itself",
        "liger_rms_norm liger_glu_activation liger_swiglu liger_rope liger_layer_norm liger_rms_norm_gated"
        " liger_fused_linear_cross_entropy liger_cross_entropy liger_use_token_scaling"
        " cut_cross_entropy chunked_cross_entropy"
        " flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_qkv flash_attn_fuse_mlp flash_optimum"
        " fused_attn_kernel lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel use_kernels tiled_mlp"
        " use_scattermoe use_sonicmoe use_grouped_moe_kernels experts_implementation mlp_impl"
        " use_glm_dsa_kernels use_dsv4_kernels dsv4_fp4_grouped_mode gemma4_hybrid_attn_impl nvfp4_merge_aware"
        " flex_attn_compile_kwargs"
        " unsloth_cross_entropy_loss unsloth_lora_mlp unsloth_lora_qkv unsloth_lora_o unsloth_rms_norm unsloth_rope",
    ),
    ("ftkit quantizes experts whenever it quantizes the model", "quantize_moe_experts llama4_linearized_experts"),
    (
        "ftkit packs by best fit and counts the steps exactly",
        "sample_packing_eff_est sample_packing_group_size sample_packing_bin_size sample_packing_seq_len_multiplier"
        " sample_packing_size sample_packing_drop_attention_mask sample_packing_mp_start_method total_num_tokens"
        " total_supervised_tokens batch_flattening collator_pad_to_longest",
    ),
    (
        "ftkit reads weights block by block onto the device that keeps them",
        "low_cpu_mem_usage lora_on_cpu device_map experimental_skip_move_to_device base_model_ignore_patterns",
    ),
    (
        "ftkit prepares rows ahead and maps them from disk",
        "dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor dataloader_drop_last"
        " dataset_keep_in_memory remove_unused_columns gc_steps",
    ),
    (
        "it is read from the model's own configuration",
        "is_llama_derived_model is_mistral_derived_model is_qwen_derived_model is_falcon_derived_model"
        " cls_model_config",
    ),
    (
        "the backend of the run sees to it",
        "ddp ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers accelerator_config local_world_size"
        " fp8_enable_fsdp_float8_all_gather world_size",
    ),
    ("evaluation runs whenever there is something to evaluate", "do_eval"),
    ("tokens a second are always measured", "include_tkps include_tokens_per_second"),
    (
        "it concerns the prompt of a chat program only",
        "gradio_title gradio_share gradio_server_name gradio_server_port",
    ),
    ("trained embeddings are always saved", "save_embedding_layers"),
    ("it concerns GPTQ weights only", "gptq_groupsize gptq_model_v1 gptq_bits gptq_disable_exllama"),
    ("it concerns the optimizer adamw_anyprecision only", "torchdistx_path"),
    ("it concerns ReLoRA only", "relora_warmup_steps relora_anneal_steps relora_prune_ratio relora_cpu_offload"),
    (
        "packs are made over the whole data set, each document isolated in its pack, streamed or not",
        "streaming_multipack_buffer_size pretrain_multipack_attn pretrain_multipack_buffer_size",
    ),
    ("it concerns context parallelism only", "heads_k_stride ring_attn_func"),
    ("it concerns expert parallelism only", "expert_parallel_num_nvl_bytes expert_parallel_token_capacity"),
)
WARNED: tuple[tuple[str, str], ...] = (
    (
        "ftkit keeps everything on this machine; upload the output folder with `hf upload` after the run",
        "hub_model_id hub_strategy hub_private_repo push_to_hub push_adapter_to_hub push_dataset_to_hub hub_revision",
    ),
    ("ftkit does not compile the model", "torch_compile torch_compile_backend torch_compile_mode"),
    ("the warm-up is linear", "lr_quadratic_warmup"),
    ("evaluation gives loss and perplexity", "eval_causal_lm_metrics do_causal_lm_eval"),
    ("data sets are always prepared before the run", "skip_prepare_dataset"),
    ("`ftkit plan` says what fits; what does not is sharded by a backend, not spilled", "gpu_memory_limit max_memory"),
    (
        "ftkit reads the model's Hugging Face tokenizer files; a model without any is refused when it is loaded",
        "tokenizer_use_mistral_common",
    ),
    ("no tool reads it; it stays in the copy of the recipe beside the run", "task test_value"),
)
NO_EFFECT: Mapping[str, str] = MappingProxyType({key: why for why, keys in (*ROWS, *WARNED) for key in keys.split()})
IS_WARNED = frozenset(key for _, keys in WARNED for key in keys.split())
