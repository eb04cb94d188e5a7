"""How frozen weights are stored, and what rounding trained ones get used to."""

from typing import Literal

from ftkit.recipe.section.base import Field, Section

Format = Literal["int4", "int8", "fp8", "nvfp4", "mxfp4"]
FormatName = Literal["int4", "int8", "fp8", "float8", "float8_e4m3fn", "nvfp4", "mxfp4"]


class QatSection(Section):
    """Quantization-aware training: the forward pass rounds weights and activations as the finished model will."""

    weight_dtype: FormatName = Field(default="int8", description="Format that weights are rounded to.")
    activation_dtype: FormatName | None = Field(
        default=None, description="Format that the inputs of linears are rounded to; none leaves them."
    )
    group_size: int | None = Field(
        default=None,
        description="Weights that share a scale: 32, but always 16 in nvfp4 and 128 in int4 under fp8 activations.",
    )
    quantize_embedding: bool = Field(default=False, description="Round the embedding too (int4 and int8).")
    fake_quant_after_n_steps: int | None = Field(
        default=None, description="Steps to train without rounding before it sets in."
    )

    @property
    def formats(self) -> tuple[Format | None, Format]:
        """Formats of activations and weights; the three names of 8-bit floats are one."""
        return shortened(self.activation_dtype), shortened(self.weight_dtype) or "int8"

    @property
    def fixed_group(self) -> int | None:
        """The group size that the formats prescribe, if they do."""
        activations, weights = self.formats
        if (activations, weights) == ("fp8", "int4"):
            return 128
        return {"nvfp4": 16, "mxfp4": 32}.get(weights)

    @property
    def group(self) -> int:
        """Weights that share a scale, where they do not share it by rows."""
        return self.fixed_group or self.group_size or 32


def shortened(name: FormatName | None) -> Format | None:
    """`float8_e4m3fn` and `float8` -> `fp8`."""
    return "fp8" if name == "float8" or name == "float8_e4m3fn" else name


class QuantizationSection(Section):
    """Quantization of the base model."""

    load_in_4bit: bool = Field(default=False, description="Keep the base in 4 bits.")
    load_in_8bit: bool = Field(default=False, description="Keep the base in 8 bits.")
    quant_method: Literal["bitsandbytes", "hqq"] | None = Field(
        default=None,
        description="Who quantizes the base: bitsandbytes, as load_in_4bit or load_in_8bit say, or hqq by itself "
        "(`ftkit[hqq]`).",
    )
    hqq_nbits: Literal[2, 3, 4, 8] = Field(default=4, description="Bits a weight under quant_method: hqq.")
    hqq_group_size: Literal[16, 32, 64, 128, 256] = Field(
        default=64, description="Weights that share a scale under quant_method: hqq."
    )
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = Field(default="nf4", description="4-bit code.")
    bnb_4bit_use_double_quant: bool = Field(default=True, description="Quantize the quantization constants too.")
    allow_unquantized_experts: bool = Field(default=False, description="Run although experts stay in 16 bits.")
    qat: QatSection | None = Field(
        default=None, description="Quantization-aware training; the model is exported unquantized."
    )

    @property
    def is_quantized(self) -> bool:
        """Whether the base is quantized while it is loaded."""
        return self.load_in_4bit or self.load_in_8bit or self.quant_method == "hqq"
