"""How frozen weights are stored."""

from typing import Literal

from ftkit.recipe.section.base import Field, Section


class QuantizationSection(Section):
    """Quantization of the base model."""

    load_in_4bit: bool = Field(default=False, description="Keep the base in 4 bits.")
    load_in_8bit: bool = Field(default=False, description="Keep the base in 8 bits.")
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = Field(default="nf4", description="4-bit code.")
    bnb_4bit_use_double_quant: bool = Field(default=True, description="Quantize the quantization constants too.")
    allow_unquantized_experts: bool = Field(default=False, description="Run although experts stay in 16 bits.")
