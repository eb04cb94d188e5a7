"""Old names of keys whose meaning did not change: as data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Top level. Dots go deeper on the right-hand side.
RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "evaluation_strategy": "eval_strategy",
        "eval_table_max_new_tokens": "eval_max_new_tokens",
        "eval_dataset": "test_datasets",
        "wandb_run_name": "wandb_name",
        "wandb:run_name": "wandb_name",
        "noisy_embedding_alpha": "neftune_noise_alpha",
        "adam_eps": "adam_epsilon",
        "epochs": "num_epochs",
        "model_revision": "revision_of_model",
        "overrides_of_model_config": "model_config",
        "lora_out_dir": "output_dir",
        "deepspeed_config": "deepspeed",
        "dataset_num_proc": "dataset_processes",
        "rope_scaling": "model_config.rope_scaling",
        "fsdp_transformer_layer_cls_to_wrap": "fsdp_config.transformer_layer_cls_to_wrap",
        "fsdp_final_state_dict_type": "fsdp_config.final_state_dict_type",
    }
)
# These never had the effect they seem to have in the tool whose dialect this is; now they do, so they are warnings.
NEWLY_HEARD = frozenset({"epochs", "wandb:run_name", "wandb_run_name", "deepspeed_config", "eval_dataset", "adam_eps"})

RENAMED_OF_DATASETS: Mapping[str, str] = MappingProxyType(
    {
        "train_on_split": "split",
        "shards_index": "shards_idx",
        "text_column": "field",
    }
)

# Optimizers by names that mean the same, or nearly.
OPTIMIZERS_RENAMED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "adamw_hf": ("adamw_torch", "the same update"),
        "adamw": ("adamw_torch", "the same update"),
        "adamw_anyprecision": ("adamw_torch", "states in 32 bits"),
        "adamw_apex_fused": ("adamw_torch_fused", "the same update, torch's kernel"),
        "adamw_torch_xla": ("adamw_torch", "the same update"),
        "adamw_torch_8bit": ("adamw_bnb_8bit", "bitsandbytes' 8-bit states instead of torchao's"),
        "adamw_torch_4bit": ("adamw_bnb_8bit", "8-bit states, the smallest there are here"),
        "adamw_torch_fp8": ("adamw_bnb_8bit", "bitsandbytes' 8-bit states instead of torchao's"),
        "adam_8bit": ("adamw_bnb_8bit", "decoupled weight decay"),
        "lion": ("lion_32bit", "the same update"),
        "paged_adamw": ("paged_adamw_32bit", "the same optimizer"),
        "paged_lion": ("paged_lion_32bit", "the same optimizer"),
    }
)

# Chat templates by other names; and those that come with the models they belong to, of which ftkit keeps no copy.
TEMPLATES_RENAMED: Mapping[str, str] = MappingProxyType({"inst": "mistral", "chatml_system": "chatml"})
TEMPLATES_OF_MODELS = frozenset(
    {
        "aya",
        "cohere",
        "command_a",
        "command_a_rag",
        "command_a_tool_use",
        "deepseek_v3",
        "exaone",
        "exaone4",
        "falcon_h1",
        "gemma3n",
        "gemma4",
        "gemma4_unified",
        "glm4",
        "jamba",
        "llama3_2_vision",
        "llama4",
        "llava",
        "metharme",
        "mistral_v2v3",
        "mistral_v3_tekken",
        "mistral_v7_tekken",
        "nemotron_h",
        "phi_35",
        "pixtral",
        "qwen2_vl",
        "qwen3",
        "qwen3_5",
    }
)
