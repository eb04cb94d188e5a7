"""Rules about number formats: 16 bits, 8 bits, 4 bits."""

from __future__ import annotations

from ftkit.recipe.rule.base import Found, Rule, View, error, note, warning


def bf16_and_fp16(r: View) -> Found:
    """A run computes in one 16-bit format: bfloat16 has the wider range, float16 is for older GPUs."""
    if (r.bf16 is True or r.bf16 == "full") and r.fp16:
        yield error("fp16", "bf16 and fp16 cannot both be true", "keep bf16 on Ampere or newer, fp16 on older GPUs")


def precision_given_twice(r: View) -> Found:
    """`precision` names what `bf16` and `fp16` say more coarsely."""
    for key in ("bf16", "fp16"):
        if r.precision and r[key] and r[key] != "auto":
            yield error("precision", f"`precision` and `{key}` both say how numbers are held", f"take {key} out")


def fp8_without_bf16(r: View) -> Found:
    """Products in 8 bits accumulate into bfloat16; float16 has not the range for it."""
    if r.fp8 and (r.fp16 or r.bf16 is False):
        yield error("fp8", "fp8 needs bf16 for all that is not a product", "set bf16: true")


def load_4bit_and_8bit(r: View) -> Found:
    """The frozen base is stored in one format."""
    if r.load_in_4bit and r.load_in_8bit:
        yield error("load_in_8bit", "load_in_4bit and load_in_8bit cannot both be true", "keep one of them")


def hqq_and_bitsandbytes(r: View) -> Found:
    """`load_in_4bit` and `load_in_8bit` are codes of bitsandbytes; hqq has its own."""
    for key, bits in (("load_in_4bit", 4), ("load_in_8bit", 8)):
        if r.quant_method == "hqq" and r[key]:
            message = f"{key} is bitsandbytes', quant_method: hqq stores the base by itself"
            yield error(key, message, f"take it out, and say hqq_nbits: {bits}")


def qlora_without_4bit(r: View) -> Found:
    """QLoRA is LoRA on a 4-bit base; without `load_in_4bit` the recipe contradicts itself."""
    if r.adapter == "qlora" and not (r.load_in_4bit or r.quant_method == "hqq"):
        yield error("adapter", "adapter: qlora needs a 4-bit base", "set load_in_4bit: true, or adapter: lora")


def lora_on_4bit(r: View) -> Found:
    """LoRA on a 4-bit base is QLoRA, whatever `adapter` calls it."""
    if r.adapter == "lora" and r.load_in_4bit:
        yield note("adapter", "lora on a 4-bit base is qlora, and runs as that", "write adapter: qlora")


def quantized_without_adapter(r: View) -> Found:
    """Quantized weights have no gradient: without an adapter there is nothing to train."""
    key = "load_in_4bit" if r.load_in_4bit else "load_in_8bit"
    if r[key] and not r.adapter:
        help = f"set adapter: {'qlora' if r.load_in_4bit else 'lora'}, or {key}: false"
        yield error(key, "quantized weights cannot be trained in full", help)
    elif r.quant_method == "hqq" and not r.adapter:
        yield error("quant_method", "quantized weights cannot be trained in full", "set adapter: lora, or take it out")


def quantization_detail_unused(r: View) -> Found:
    """`bnb_4bit_*` and `hqq_*` keys say how weights are stored; without what quantizes them they do nothing."""
    for key in ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant"):
        if r.gives(key) and not r.load_in_4bit:
            yield warning(key, f"`{key}` has no effect without load_in_4bit: true", "take it out")
    for key in ("hqq_nbits", "hqq_group_size"):
        if r.gives(key) and r.quant_method != "hqq":
            yield warning(key, f"`{key}` has no effect without quant_method: hqq", "take it out")
    if r.quant_method == "bitsandbytes" and not (r.load_in_4bit or r.load_in_8bit):
        message = "`quant_method: bitsandbytes` has no effect without load_in_4bit or load_in_8bit"
        yield warning("quant_method", message, "set load_in_4bit: true, or take it out")


def fp8_and_4bit(r: View) -> Found:
    """8-bit products replace those of 16-bit weights; weights of 4 bits are unpacked to 16 for theirs already."""
    if r.fp8 and (r.load_in_4bit or r.load_in_8bit or r.quant_method == "hqq"):
        yield error("fp8", "fp8 is for weights in 16 bits", "take fp8 out, or do not quantize the base")


RULES: tuple[Rule, ...] = (
    bf16_and_fp16,
    precision_given_twice,
    fp8_without_bf16,
    load_4bit_and_8bit,
    hqq_and_bitsandbytes,
    qlora_without_4bit,
    lora_on_4bit,
    quantized_without_adapter,
    quantization_detail_unused,
    fp8_and_4bit,
)
