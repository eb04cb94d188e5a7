"""Which quantizer a run has: what the recipe asks for, or what the checkpoint is stored with already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftkit.errors import ModelError

if TYPE_CHECKING:
    from ftkit.recipe.section.adapter import AdapterSection
    from ftkit.recipe.section.quantization import QuantizationSection


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Which quantizer of the catalog, with the options its linears are built with.

    Args:
        skipped: modules, or parts of their names, whose linears stay in floats.
    """

    name: str
    bits: int
    options: Mapping[str, bool | int]
    skipped: tuple[str, ...] = ()

    @property
    def double(self) -> bool | None:
        """Whether its scales are quantized too; None where there is no such choice."""
        return self.options.get("double_quantization")  # type: ignore[return-value]

    @property
    def words(self) -> str:
        """For people, such as `4 bit (nf4)`."""
        return f"{self.bits} bit ({self.name})"


def choose_quantizer(
    quantization: QuantizationSection, adapter: AdapterSection, stored: Mapping[str, Any]
) -> Quantizer | None:
    """Return the quantizer the recipe asks for or the checkpoint is `stored` with, if any.

    Raises:
        ModelError: they contradict each other, or there is no adapter to train.
    """
    if stored and adapter.adapter and adapter.loftq_bits:
        raise ModelError(
            f"LoftQ needs the unquantized weights, got a checkpoint in {stored_quantizer(stored).words}",
            where="peft.loftq_config",
            help="take the key out, or use the unquantized checkpoint",
        )
    quantization = adapter.stored(quantization)
    wanted = wanted_quantizer(quantization)
    if stored:
        found = stored_quantizer(stored)
        refuse_contradiction(quantization, wanted, found)
        wanted = found
    if wanted is not None and not adapter.adapter:
        raise ModelError(
            "a quantized model cannot be fully fine-tuned",
            where="base_model" if stored else "quantization",
            help=f"set adapter: lora, or {'use the unquantized checkpoint' if stored else 'do not quantize it'}",
        )
    return wanted


def wanted_quantizer(quantization: QuantizationSection) -> Quantizer | None:
    """The quantizer that the recipe asks for."""
    if quantization.quant_method == "hqq":
        sizes = {"bits": quantization.hqq_nbits, "group_size": quantization.hqq_group_size}
        return Quantizer("hqq", quantization.hqq_nbits, sizes)
    if quantization.load_in_8bit:
        return Quantizer("int8", 8, {})
    options = {"double_quantization": quantization.bnb_4bit_use_double_quant}
    return Quantizer(quantization.bnb_4bit_quant_type, 4, options) if quantization.load_in_4bit else None


def stored_quantizer(settings: Mapping[str, Any]) -> Quantizer:
    """The quantizer of a checkpoint that bitsandbytes has quantized, from its `quantization_config`."""
    skipped = tuple(settings.get("llm_int8_skip_modules") or ())
    if settings.get("load_in_8bit"):
        return Quantizer("int8", 8, {}, skipped)
    options = {"double_quantization": bool(settings.get("bnb_4bit_use_double_quant"))}
    return Quantizer(settings.get("bnb_4bit_quant_type", "fp4"), 4, options, skipped)


def refuse_contradiction(quantization: QuantizationSection, wanted: Quantizer | None, found: Quantizer) -> None:
    """Refuse a recipe that asks for other codes than the checkpoint holds; what it leaves at its default gives way."""
    said = []
    if wanted is not None and wanted.name == "hqq":
        said.append("quant_method: hqq")
    elif wanted is not None and wanted.bits != found.bits:
        said.append(f"load_in_{wanted.bits}bit: true")
    for key, value in (("bnb_4bit_quant_type", found.name), ("bnb_4bit_use_double_quant", found.double)):
        chosen = getattr(quantization, key)
        if chosen not in (value, type(quantization).model_fields[key].get_default(call_default_factory=True)):
            said.append(f"{key}: {str(chosen).lower()}")
    if said:
        raise ModelError(
            f"the checkpoint is already quantized to {found.words}, got {', '.join(said)}",
            where="base_model",
            help="take that out, or use the unquantized checkpoint",
        )
