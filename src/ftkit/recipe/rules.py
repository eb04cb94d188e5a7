"""What keys must not say together. Each rule looks at the recipe and yields findings; all of them run, always."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ftkit.catalog import OPTIMIZERS, SCHEDULES
from ftkit.recipe.keys import nearest
from ftkit.recipe.section.base import Section


class Finding(NamedTuple):
    """What a rule says: about which key, of which kind, what, and how to mend it."""

    code: str
    key: str
    message: str
    help: str
    severity: str = "error"


Sections = Mapping[str, Any]  # by attribute name; a rule runs only when all sections could be built
Rule = Callable[[Sections], Iterator[Finding]]


def findings(sections: Mapping[str, Section]) -> Iterator[Finding]:
    """Everything the rules have to say."""
    for rule in RULES:
        yield from rule(sections)


def optimizer_is_known(s: Sections) -> Iterator[Finding]:
    yield from known("optimizer", s["optimization"].optimizer, OPTIMIZERS)


def schedule_is_known(s: Sections) -> Iterator[Finding]:
    yield from known("lr_scheduler", s["optimization"].lr_scheduler, SCHEDULES)


def known(key: str, value: str, table: Mapping[str, str]) -> Iterator[Finding]:
    if value not in table:
        guess = nearest(value, table)
        help = f"did you mean `{guess}`?" if guess else f"one of {', '.join(sorted(table))}"
        yield Finding(f"unknown-{key.replace('_', '-')}", key, f"no {key} is called `{value}`", help)


def something_to_train_on(s: Sections) -> Iterator[Finding]:
    if not s["data"].datasets:
        yield Finding(
            "missing", "datasets", "the key `datasets` is missing", "add `datasets:` with items of `path` and `type`"
        )


def one_precision(s: Sections) -> Iterator[Finding]:
    if s["training"].bf16 is True and s["training"].fp16:
        yield Finding(
            "bf16-and-fp16",
            "fp16",
            "bf16 and fp16 cannot both be true",
            "keep bf16 on Ampere or newer, fp16 on older GPUs",
        )


def qlora_is_quantized(s: Sections) -> Iterator[Finding]:
    if s["adapter"].adapter == "qlora" and not s["quantization"].load_in_4bit:
        yield Finding(
            "qlora-without-4bit",
            "adapter",
            "adapter: qlora needs a 4-bit base",
            "set load_in_4bit: true, or adapter: lora",
        )


def quantized_is_adapted(s: Sections) -> Iterator[Finding]:
    q = s["quantization"]
    if (q.load_in_4bit or q.load_in_8bit) and not s["adapter"].adapter:
        key = "load_in_4bit" if q.load_in_4bit else "load_in_8bit"
        yield Finding(
            "quantized-without-adapter",
            key,
            "quantized weights cannot be trained in full",
            f"set adapter: qlora, or {key}: false",
        )


def one_quantization(s: Sections) -> Iterator[Finding]:
    if s["quantization"].load_in_4bit and s["quantization"].load_in_8bit:
        yield Finding("4bit-and-8bit", "load_in_8bit", "load_in_4bit and load_in_8bit cannot both be true", "keep one")


def one_backend(s: Sections) -> Iterator[Finding]:
    if s["backend"].deepspeed and s["backend"].fsdp:
        yield Finding("deepspeed-and-fsdp", "fsdp", "deepspeed and fsdp cannot both be set", "keep one of them")


def one_warmup(s: Sections) -> Iterator[Finding]:
    if s["optimization"].warmup_steps is not None and s["optimization"].warmup_ratio is not None:
        yield Finding("warmup-twice", "warmup_ratio", "warmup_steps and warmup_ratio say the same thing", "keep one")


def positive(s: Sections) -> Iterator[Finding]:
    for section, key, least in POSITIVE:
        value = getattr(s[section], key)
        if value is not None and value < least:
            yield Finding("too-small", key, f"`{key}` must be at least {least}, got {value}", "")


POSITIVE = (
    ("training", "micro_batch_size", 1),
    ("training", "gradient_accumulation_steps", 1),
    ("training", "max_grad_norm", 0),
    ("data", "sequence_len", 2),
    ("data", "val_set_size", 0),
    ("adapter", "lora_r", 1),
    ("optimization", "learning_rate", 0),
    ("optimization", "warmup_steps", 0),
    ("saving", "save_total_limit", 1),
)

RULES: tuple[Rule, ...] = (
    optimizer_is_known,
    schedule_is_known,
    something_to_train_on,
    one_precision,
    qlora_is_quantized,
    quantized_is_adapted,
    one_quantization,
    one_backend,
    one_warmup,
    positive,
)
