"""Rules about quantization-aware training."""

from __future__ import annotations

from ftkit.recipe.rule.base import Found, Rule, View, error, warning

PAIRS = frozenset(  # activations, weights: what torchao has a quantized layer for
    {
        (None, "int4"),
        (None, "int8"),
        (None, "nvfp4"),
        (None, "mxfp4"),
        ("int8", "int4"),
        ("int8", "int8"),
        ("fp8", "int4"),
        ("fp8", "fp8"),
        ("nvfp4", "nvfp4"),
        ("mxfp4", "mxfp4"),
    }
)


def qat_under_adapter(r: View) -> Found:
    """Quantization-aware training moves weights to where rounding hurts least; under an adapter they are frozen."""
    if r.qat and r.adapter:
        yield error("qat", f"`qat` trains the weights themselves, adapter: {r.adapter} freezes them", "take one out")


def qat_and_fp8(r: View) -> Found:
    """Both say how the products of linears are rounded."""
    if r.qat and r.fp8:
        yield error("fp8", "fp8 computes products in 8 bits, qat imitates other ones", "take one of them out")


def qat_formats(r: View) -> Found:
    """A pair of formats of activations and weights that no quantized layer exists for."""
    if r.qat and r.qat.formats not in PAIRS:
        activations, weights = r.qat.formats
        fitting = " or ".join(sorted(a or "none" for a, w in PAIRS if w == weights))
        message = f"no layer has {weights} weights and {activations or 'unrounded'} activations"
        yield error("qat.activation_dtype", message, f"with {weights} weights: {fitting}")


def qat_group_size(r: View) -> Found:
    """Some formats have groups of one size only."""
    if r.qat and r.qat.group_size is not None and r.qat.group_size != (r.qat.fixed_group or r.qat.group_size):
        message = f"these formats have groups of {r.qat.fixed_group}, got {r.qat.group_size}"
        yield error("qat.group_size", message, f"write {r.qat.fixed_group}, or take it out")


def qat_group_size_unused(r: View) -> Found:
    """8-bit floats have one scale a row of the weight."""
    if r.qat and r.qat.formats[1] == "fp8" and r.qat.group_size is not None:
        message = "`group_size` has no effect on fp8 weights, which have one scale a row"
        yield warning("qat.group_size", message, "take it out")


def qat_embedding(r: View) -> Found:
    """Tables of embeddings are quantized to integers only."""
    if r.qat and r.qat.quantize_embedding and r.qat.formats[1] not in ("int4", "int8"):
        message = f"an embedding cannot be quantized to {r.qat.formats[1]}"
        yield error("qat.quantize_embedding", message, "set it to false, or weight_dtype to int4 or int8")


def qat_out_of_range(r: View) -> Found:
    """A group holds at least one weight, and rounding sets in after a number of steps."""
    for key, least in (("group_size", 1), ("fake_quant_after_n_steps", 0)):
        value = getattr(r.qat, key) if r.qat else None
        if value is not None and value < least:
            yield error(f"qat.{key}", f"`{key}` must be at least {least}, got {value}", "")


def qat_never_sets_in(r: View) -> Found:
    """The run is over before the rounding begins."""
    after = r.qat.fake_quant_after_n_steps if r.qat else None
    if after and r.max_steps and after >= r.max_steps:
        message = f"rounding sets in after {after} steps of a run of {r.max_steps}"
        yield warning("qat.fake_quant_after_n_steps", message, f"take {r.max_steps // 2}")


RULES: tuple[Rule, ...] = (
    qat_under_adapter,
    qat_and_fp8,
    qat_formats,
    qat_group_size,
    qat_group_size_unused,
    qat_embedding,
    qat_out_of_range,
    qat_never_sets_in,
)
