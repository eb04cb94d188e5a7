"""Rules about adapters."""

from __future__ import annotations

import re

from ftkit.recipe.rule.base import Found, Rule, View, error, note, warning

SETTINGS = (
    "lora_target_modules",
    "lora_target_linear",
    "lora_modules_to_save",
    "lora_fan_in_fan_out",
    "lora_model_dir",
    "lora_rank_pattern",
    "lora_alpha_pattern",
    "peft_layers_to_transform",
    "peft_trainable_token_indices",
    "peft_use_dora",
    "peft_use_rslora",
    "peft",
)
NUMBERS = ("lora_r", "lora_alpha", "lora_dropout")


def lora_key_unused(r: View) -> Found:
    """Keys of an adapter in a recipe without one: it fine-tunes the whole model."""
    given = [key for key in (*NUMBERS, *SETTINGS) if r.gives(key) and r[key]]
    if given and not r.adapter:
        others = f" and {len(given) - 1} more" if len(given) > 1 else ""
        message = f"`{given[0]}`{others} without effect: no adapter is set, so the whole model is trained"
        yield warning(given[0], message, "set adapter: lora, or take the keys out")


def adapter_without_targets(r: View) -> Found:
    """An adapter that is attached to nothing trains nothing."""
    ways = ("lora_target_modules", "lora_target_linear", "lora_target_parameters", "lora_model_dir")
    if r.adapter and not any(r[key] for key in ways):
        help = "set lora_target_linear: true, or list lora_target_modules"
        yield error("adapter", "the adapter has no targets", help)


def targets_given_twice(r: View) -> Found:
    """`lora_target_linear` already adapts every linear layer; listed modules only add what is not linear."""
    if r.adapter and r.lora_target_linear and r.lora_target_modules:
        message = "lora_target_linear: true adapts every linear layer, those listed here included"
        yield warning("lora_target_modules", message, "keep one of the two keys")


def target_listed_twice(r: View) -> Found:
    """A module stands twice in a list of targets."""
    names = r.lora_target_modules if isinstance(r.lora_target_modules, tuple) else ()
    for index, name in enumerate(names):
        if name in names[:index]:
            yield warning(f"lora_target_modules.{index}", f"`{name}` is listed twice", "keep one")


def target_pattern(r: View) -> Found:
    """`lora_target_modules` as one text is a regular expression."""
    if isinstance(r.lora_target_modules, str) and r.lora_target_modules != "all-linear":
        try:
            re.compile(r.lora_target_modules)
        except re.error as bad:
            message = f"not a regular expression ({bad}), got {r.lora_target_modules}"
            yield error("lora_target_modules", message, "mend it, or list the modules' names")


def alpha_is_zero(r: View) -> Found:
    """The adapter's output is scaled by alpha / r: with 0 it can never change anything."""
    if r.adapter and r.lora_alpha <= 0:
        yield error("lora_alpha", f"`lora_alpha` must be above 0, got {r.lora_alpha:g}", "take 16, or the rank")


def rank_is_positive(r: View) -> Found:
    """The rank of an adapter counts the columns of its A and B."""
    if r.lora_r < 1:
        yield error("lora_r", f"`lora_r` must be at least 1, got {r.lora_r}", "take 8 to 64")


def dropout_is_share(r: View) -> Found:
    """Dropout is the share of inputs that are zeroed."""
    if not 0 <= r.lora_dropout < 1:
        help = f"write {r.lora_dropout / 100:g}" if 1 <= r.lora_dropout < 100 else "take 0 to 0.1"
        yield error("lora_dropout", f"`lora_dropout` must be in [0, 1), got {r.lora_dropout:g}", help)


def adapter_and_unfrozen(r: View) -> Found:
    """`unfrozen_parameters` selects what a full fine-tune trains; an adapter freezes all of the base."""
    if r.adapter and r.unfrozen_parameters:
        message = "`unfrozen_parameters` has no effect: the base is frozen under an adapter"
        yield warning("unfrozen_parameters", message, "take adapter out, or list whole modules in lora_modules_to_save")


def loraplus_without_ratio(r: View) -> Found:
    """LoRA+ gives B a higher learning rate by `loraplus_lr_ratio`; the embedding's rate alone turns nothing on."""
    if r.gives("loraplus_lr_embedding") and not r.loraplus_lr_ratio:
        message = "`loraplus_lr_embedding` has no effect without loraplus_lr_ratio"
        yield warning("loraplus_lr_embedding", message, "set loraplus_lr_ratio: 16, or take it out")


def saved_whole_and_adapted(r: View) -> Found:
    """A module is either trained whole (`lora_modules_to_save`) or through an adapter (`lora_target_modules`)."""
    names = r.lora_target_modules if isinstance(r.lora_target_modules, tuple) else ()
    for index, name in enumerate(r.lora_modules_to_save):
        if name in names:
            message = f"`{name}` is adapted and trained whole"
            yield error(f"lora_modules_to_save.{index}", message, "list it under one of the two keys")


def loftq_stores_base(r: View) -> Found:
    """LoftQ makes up for the rounding of a quantized base: the base is quantized, and the adapter fits that alone."""
    bits = loftq_bits(r)
    if bits and r.adapter and not (r.load_in_4bit or r.load_in_8bit):
        how = "load_in_4bit=True, bnb_4bit_quant_type='nf4'" if bits == 4 else "load_in_8bit=True"
        message = f"LoftQ keeps the base in {bits} bits; the adapter fits the base in {bits} bits only"
        yield note("peft.loftq_config.loftq_bits", message, f"load it later with BitsAndBytesConfig({how})")


def loftq_contradicts(r: View) -> Found:
    """The bits that LoftQ corrects are those of the base."""
    bits, stored = loftq_bits(r), 4 if r.load_in_4bit else 8 if r.load_in_8bit else None
    if bits and stored and bits != stored:
        message = f"loftq_bits: {bits} contradicts load_in_{stored}bit: true"
        yield error("peft.loftq_config.loftq_bits", message, f"write loftq_bits: {stored}")


def loftq_and_hqq(r: View) -> Found:
    """The adapter of LoftQ fits a base as bitsandbytes stores it: that is what others can load it on."""
    if loftq_bits(r) and r.quant_method == "hqq":
        yield error("quant_method", "LoftQ corrects a base stored by bitsandbytes", "take one of the two keys out")


def loftq_and_dora(r: View) -> Found:
    """DoRA's magnitudes are those of the base while B is zero; LoftQ starts B at something else."""
    if loftq_bits(r) and r.peft_use_dora:
        yield error("peft_use_dora", "LoftQ and DoRA each start the adapter in their own way", "keep one of them")


def loftq_on_old_adapter(r: View) -> Found:
    """An adapter that is continued brings its values along."""
    if loftq_bits(r) and r.lora_model_dir:
        message = "LoftQ starts a new adapter; the one in lora_model_dir keeps its values"
        yield warning("peft.loftq_config", message, "take it out, and set load_in_4bit as when the adapter was made")


def loftq_scale(r: View) -> Found:
    """LoftQ, as PEFT has it, sets A and B without regard to the adapter's scale: at 1 they make up for the error."""
    scale = r.lora_alpha / r.lora_r ** (0.5 if r.peft_use_rslora else 1) if loftq_bits(r) and r.lora_r > 0 else 1
    if r.adapter and scale != 1:
        say = warning if scale >= 2 else note
        message = f"LoftQ corrects the base {scale:g} times, since the adapter's scale is {scale:g}"
        yield say("lora_alpha", message, "equal lora_alpha and lora_r correct it once")


def loftq_bits(r: View) -> int | None:
    """Bits of LoftQ's base."""
    return r.peft.loftq_config.loftq_bits if r.peft and r.peft.loftq_config else None


RULES: tuple[Rule, ...] = (
    lora_key_unused,
    adapter_without_targets,
    targets_given_twice,
    target_listed_twice,
    target_pattern,
    alpha_is_zero,
    rank_is_positive,
    dropout_is_share,
    adapter_and_unfrozen,
    loraplus_without_ratio,
    saved_whole_and_adapted,
    loftq_stores_base,
    loftq_contradicts,
    loftq_and_hqq,
    loftq_and_dora,
    loftq_on_old_adapter,
    loftq_scale,
)
