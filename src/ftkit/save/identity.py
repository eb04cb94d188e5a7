"""What must be the same for a resumed run to go on as if it had never stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ftkit.recipe.section.base import Section

# Keys that change neither the order of the data nor what is computed from it. A key that is not here counts.
FREE = frozenset(
    {
        "dataset_prepared_path",
        "dataset_processes",
        "streaming",
        "test_datasets",
        "eval_batch_size",
        "eval_sample_packing",
        "logging_steps",
        "sample_prompts",
        "pad_to_sequence_len",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs",
        "reentrant_checkpointing",
        "activation_offloading",
        "trust_remote_code",
        "flash_attention",
        "sdp_attention",
        "eager_attention",
        "flex_attention",
        "xformers_attention",
        "attn_implementation",
        "micro_batch_size",  # their product counts, as `packs_per_step`
        "gradient_accumulation_steps",
    }
)


def identity(sections: Iterable[Section], derived: Mapping[str, object]) -> dict[str, str]:
    """Return what identifies a run: each key that counts, with its value as JSON.

    Args:
        sections: those that shape training: model, tokens, quantization, adapter, data, training, optimization.
        derived: further values, such as `packs_per_step` (micro-batch x accumulation x ranks), `num_steps`, and
            digests of what the keys only name: the documents and the base's weights.
    """
    values: dict[str, object] = {}
    for section in sections:
        values |= {key: value for key, value in section.model_dump(mode="json").items() if key not in FREE}
    return {key: json.dumps(value, sort_keys=True, default=str) for key, value in (values | dict(derived)).items()}
