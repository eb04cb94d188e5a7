"""The adapter that is trained beside a frozen model."""

from typing import Literal

from ftkit.recipe.section.base import Field, Section
from ftkit.recipe.section.frozen import FrozenMap
from ftkit.recipe.section.quantization import QuantizationSection


class LoftqSection(Section):
    """An adapter that starts at the rounding error of its quantized base."""

    loftq_bits: Literal[4, 8] = Field(default=4, description="Bits of the base: 4 (nf4) or 8.")


class PeftSection(Section):
    """Settings that are named after PEFT's."""

    loftq_config: LoftqSection | None = Field(
        default=None, description="Start the adapter at the rounding error of a quantized base (LoftQ)."
    )


class AdapterSection(Section):
    """LoRA and its kin."""

    adapter: Literal["lora", "qlora"] | None = Field(
        default=None, description="lora, qlora, or nothing for full fine-tuning."
    )
    lora_r: int = Field(default=8, description="Rank.")
    lora_alpha: float = Field(default=16, description="Scale is alpha / r.")
    lora_rank_pattern: FrozenMap = Field(
        default_factory=FrozenMap, description="Names or regular expressions of adapted modules -> their own rank."
    )
    lora_alpha_pattern: FrozenMap = Field(
        default_factory=FrozenMap, description="Names or regular expressions of adapted modules -> their own alpha."
    )
    lora_dropout: float = Field(default=0.0, description="Dropout before A.")
    lora_target_modules: tuple[str, ...] | str | None = Field(
        default=None, description="Names, a regular expression, or all-linear."
    )
    lora_target_linear: bool = Field(default=False, description="Adapt every linear layer of the blocks.")
    lora_modules_to_save: tuple[str, ...] = Field(
        default=(), description="Modules trained whole and saved with the adapter."
    )
    lora_model_dir: str | None = Field(default=None, description="Adapter to continue.")
    lora_fan_in_fan_out: bool | None = Field(default=None, description="Weights are stored as (in, out).")
    peft_use_dora: bool = Field(default=False, description="DoRA.")
    peft_use_rslora: bool = Field(default=False, description="Scale by alpha / sqrt(r).")
    lora_target_parameters: tuple[str, ...] = Field(default=(), description="Parameters (stacked experts) to adapt.")
    peft_layers_to_transform: tuple[int, ...] | int | None = Field(
        default=None, description="Blocks to adapt; all when absent."
    )
    peft_layers_pattern: tuple[str, ...] | str | None = Field(default=None, description="Name of the list of blocks.")
    peft_trainable_token_indices: FrozenMap | tuple[int, ...] | None = Field(
        default=None,
        description="Rows of the embedding to train by themselves, or name of a table -> its rows; those of new tokens"
        " are trained anyway.",
    )
    loraplus_lr_ratio: float | None = Field(default=None, description="LoRA+: rate of B over rate of A.")
    loraplus_lr_embedding: float | None = Field(default=None, description="LoRA+: rate of adapted embeddings.")
    peft: PeftSection | None = Field(default=None, description="Settings that are named after PEFT's.")

    @property
    def loftq_bits(self) -> int | None:
        """Bits of the base that LoftQ corrects; None without LoftQ."""
        return self.peft.loftq_config.loftq_bits if self.peft and self.peft.loftq_config else None

    def stored(self, quantization: QuantizationSection) -> QuantizationSection:
        """How the base is stored: LoftQ quantizes it by itself, as PEFT's does, where no other key says how."""
        if not (self.adapter and self.loftq_bits) or quantization.load_in_4bit or quantization.load_in_8bit:
            return quantization
        own = {f"load_in_{self.loftq_bits}bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False}
        return quantization.model_copy(update=own)
