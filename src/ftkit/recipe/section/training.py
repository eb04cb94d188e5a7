"""Batch sizes, length, precision."""

from typing import Literal

from ftkit.recipe.section.base import Field, Section
from ftkit.recipe.section.frozen import FrozenMap


class TrainingSection(Section):
    """The run itself."""

    micro_batch_size: int = Field(default=1, description="Documents or packs a forward pass.")
    gradient_accumulation_steps: int = Field(default=1, description="Forward passes an optimizer step.")
    eval_batch_size: int | None = Field(default=None, description="Micro-batch of evaluation.")
    num_epochs: float = Field(default=1, description="Passes over the data; may be fractional.")
    max_steps: int | None = Field(default=None, description="Optimizer steps; counts alone when given.")
    seed: int = Field(default=42, description="Seed of everything random.")
    precision: Literal["fp32", "bf16", "bf16_buffers_autocast", "mp_bf16_autocast", "mp_fp16_autocast"] | None = Field(
        default=None,
        description="How numbers are held, in place of bf16 and fp16: fp32, bf16 (weights too), mp_bf16_autocast (what"
        " `bf16: true` means), mp_fp16_autocast (`fp16: true`, with a scaled loss), bf16_buffers_autocast.",
    )
    bf16: bool | Literal["auto", "full"] | None = Field(
        default=None, description="Compute in bfloat16; full holds trained weights in it too."
    )
    fp16: bool | None = Field(default=None, description="Compute in float16.")
    tf32: bool | None = Field(default=None, description="Let float32 products run in tf32.")
    fp8: bool = Field(default=False, description="Frozen products in 8 bits.")
    gradient_checkpointing: bool | str = Field(
        default=False,
        description="Recompute activations in backward: true, selective (every second block) or offload (keep the"
        " inputs of blocks in host memory).",
    )
    reentrant_checkpointing: bool | None = Field(
        default=None, description="Recompute in torch's older, reentrant way; the same as use_reentrant."
    )
    gradient_checkpointing_kwargs: FrozenMap = Field(default_factory=FrozenMap, description="use_reentrant.")
    max_grad_norm: float = Field(default=1.0, description="Clip the global gradient norm to this; 0 for no clipping.")
    logging_steps: int | float = Field(default=1, description="Steps, or share of the run, between log lines.")
    sample_prompts: tuple[str, ...] = Field(default=(), description="Questions answered before and after training.")
    data_seed: int | None = Field(default=None, description="Seed of the order of documents, if not `seed`.")
    neftune_noise_alpha: float | None = Field(default=None, description="Scale of noise on embeddings (NEFTune).")
    use_eaft: bool = Field(
        default=False, description="Weigh each target's loss by the entropy of its prediction (EAFT)."
    )
    eaft_alpha: float = Field(default=1.0, description="Exponent of that entropy; 0 weighs all alike.")
    eaft_k: int = Field(default=20, description="Most likely tokens the entropy is taken over.")
    activation_offloading: bool | Literal["legacy"] | None = Field(
        default=None, description="Keep the inputs of recomputed blocks in the host's memory."
    )
    unfrozen_parameters: tuple[str, ...] = Field(
        default=(), description="Regular expressions of the parameters to train; all others are frozen."
    )
