"""Yesterday's dialect -> today's, before anything is checked.

Plain renames are data (`renames.py`); what needs a look at values is a function here. Each changes `source.data`
through `edits.py` and says what it did: a note where nothing changes but the name, a warning where the run differs from
what the old key did, an error where the two cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from typing import Any

from ftkit.catalog import TEMPLATES
from ftkit.recipe.edits import change, remove, rename, restate, value_at
from ftkit.recipe.fit import flag
from ftkit.recipe.renames import (
    NEWLY_HEARD,
    OPTIMIZERS_RENAMED,
    RENAMED,
    RENAMED_OF_DATASETS,
    TEMPLATES_OF_MODELS,
    TEMPLATES_RENAMED,
)
from ftkit.recipe.source import Path, Source, dotted

Migration = Callable[[Source], None]
# Names under `report_to` -> the key that says so, and its value; or the key that must say where the tracker is.
TRACKERS: Mapping[str, tuple[str, bool]] = {
    "none": ("use_wandb", False),
    "wandb": ("use_wandb", True),
    "tensorboard": ("use_tensorboard", True),
    "comet_ml": ("use_comet", True),
    "comet": ("use_comet", True),
}
TRACKERS_BY_PLACE: Mapping[str, str] = {"mlflow": "mlflow_tracking_uri", "trackio": "trackio_project_name"}


def migrate(source: Source) -> None:
    """Bring `source.data` into today's dialect; what was done stands in `source.problems` and `source.edits`."""
    for old, new in RENAMED.items():
        if source.data.get(old) is not None:
            renamed(source, (old,), tuple(new.split(".")), heard_before=old not in NEWLY_HEARD)
    for migration in MIGRATIONS:
        migration(source)
    for path, _ in dataset_entries(source):
        for old, new in RENAMED_OF_DATASETS.items():
            if value_at(source.data, (*path, old)) is not None:
                renamed(source, (*path, old), (*path, new))


def renamed(source: Source, old: Path, new: Path, *, heard_before: bool = True) -> None:
    """Rename a key and say so."""
    if rename(source, old, new):
        said = "is now called" if heard_before else "had no effect in axolotl; it is read as"
        message = f"`{dotted(old)}` {said} `{dotted(new)}`"
        moved(source, old, message, "note" if heard_before else "warning")


def moved(source: Source, path: Path, message: str, severity: str = "note") -> None:
    """Say that the key at `path` was migrated."""
    help = "`ftkit migrate` rewrites the file"
    source.note("migrated", path, message, help, severity=severity, at_key=True)


def given(source: Source, key: str) -> Any:
    """The value of a top-level key; None where absent or null."""
    return source.data.get(key)


def dataset_entries(source: Source) -> list[tuple[Path, dict[str, Any]]]:
    """Path and mapping of each data set, trained on or evaluated on."""
    lists = [(key, source.data.get(key)) for key in ("datasets", "test_datasets")]
    return [
        ((key, index), entry)
        for key, entries in lists
        if isinstance(entries, list)
        for index, entry in enumerate(entries)
        if isinstance(entry, dict)
    ]


def batch_size(source: Source) -> None:
    """`batch_size` was the batch of a step on one process: accumulation follows from it."""
    total, micro = whole(given(source, "batch_size")), whole(given(source, "micro_batch_size"))
    if total is None:
        return
    if given(source, "gradient_accumulation_steps") is not None:
        remove(source, ("batch_size",))
        moved(source, ("batch_size",), "`batch_size` gives way to gradient_accumulation_steps x micro_batch_size")
    elif micro is None or micro < 1:
        rename(source, ("batch_size",), ("micro_batch_size",))
        moved(source, ("batch_size",), "`batch_size` is now called `micro_batch_size`")
    elif total % micro:
        message = f"`batch_size` must be a multiple of micro_batch_size ({micro}), got {total}"
        source.note("batch-size", ("batch_size",), message, "set gradient_accumulation_steps instead")
        remove(source, ("batch_size",))
    else:
        remove(source, ("batch_size",))
        change(source, ("gradient_accumulation_steps",), total // micro, cause=("batch_size",))
        moved(source, ("batch_size",), f"`batch_size` is now `gradient_accumulation_steps: {total // micro}`")


def base_model_config(source: Source) -> None:
    """Saying the model's own name again says nothing."""
    if given(source, "base_model_config") is not None and given(source, "base_model_config") == given(
        source, "base_model"
    ):
        remove(source, ("base_model_config",))
        moved(source, ("base_model_config",), "`base_model_config` repeats `base_model`; it is not needed")


def load_4bit(source: Source) -> None:
    """`load_4bit` is `load_in_4bit`; it went before `load_in_8bit`, which recipes left standing."""
    wanted = given(source, "load_4bit")
    if flag(wanted) and flag(given(source, "load_in_8bit")):
        change(source, ("load_in_8bit",), False)
        message = "`load_4bit: true` goes before `load_in_8bit: true`, as it did"
        moved(source, ("load_4bit",), message, "warning")
    if wanted is not None:
        renamed(source, ("load_4bit",), ("load_in_4bit",))


def half_precision(source: Source) -> None:
    """`bfloat16` and `float16` asked for the whole model in that precision, `bf16` and `fp16` for computing in it.

    `float16: true` with `fp16: false` is what well-known recipes say: there the first goes before, aloud.
    """
    for old, new in (("bfloat16", "bf16"), ("float16", "fp16")):
        wanted = given(source, old)
        if flag(wanted):
            remove(source, (old,))
            lost = old == "float16" and flag(given(source, new)) is False
            weak = ("auto", given(source, new)) if lost else ("auto",)
            if restate(source, (old,), (new,), True, gives_way=weak):
                said = f"goes before `{new}: false`, and is now" if lost else "is now"
                message = f"`{old}: true` {said} `{new}: true`; trained weights stay in 32 bits"
                moved(source, (old,), message, "warning")
        elif wanted is not None:
            renamed(source, (old,), (new,))


def warmup_share(source: Source) -> None:
    """A share of the run under `warmup_steps`."""
    steps = as_number(given(source, "warmup_steps"))
    if steps is not None and 0 < steps < 1 and given(source, "warmup_ratio") is None:
        rename(source, ("warmup_steps",), ("warmup_ratio",))
        moved(source, ("warmup_steps",), f"`warmup_steps: {steps:g}` is a share of the run: `warmup_ratio: {steps:g}`")


def templates(source: Source) -> None:
    """Chat templates by their other names, of the recipe and of each data set."""
    for path in [(), *(path for path, _ in dataset_entries(source))]:
        where = (*path, "chat_template")
        name = value_at(source.data, where)
        if not isinstance(name, str) or name in TEMPLATES:
            continue
        if name in TEMPLATES_RENAMED:
            change(source, where, TEMPLATES_RENAMED[name])
            moved(source, where, f"chat template {name} is now called {TEMPLATES_RENAMED[name]}")
        elif name in TEMPLATES_OF_MODELS:
            change(source, where, "tokenizer_default")
            message = f"chat template {name} is taken from the model's own tokenizer (tokenizer_default)"
            moved(source, where, message, "warning")


def bnb_config_kwargs(source: Source) -> None:
    """The options of bitsandbytes are keys of their own."""
    options = given(source, "bnb_config_kwargs")
    if not isinstance(options, dict):
        return
    for key in list(options):
        old = ("bnb_config_kwargs", key)
        if key in ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant") and options[key] is not None:
            renamed(source, old, (key,))
        elif key in ("llm_int8_has_fp16_weight", "bnb_4bit_compute_dtype", "load_in_4bit"):
            remove(source, old)
            source.note(
                "no-effect", old, f"`{key}` has no effect: bf16 and fp16 say what is computed in", severity="note"
            )
    if not options:
        remove(source, ("bnb_config_kwargs",))
    else:
        for key in options:
            source.note("unknown-key", ("bnb_config_kwargs", key), f"no option is called `{key}`", at_key=True)
        remove(source, ("bnb_config_kwargs",))


def attention(source: Source) -> None:
    """What xformers computed is what flash attention computes."""
    wanted = given(source, "xformers_attention")
    if flag(wanted):
        remove(source, ("xformers_attention",))
        others = ("flash_attention", "sdp_attention", "flex_attention", "eager_attention", "attn_implementation")
        if not any(given(source, other) and flag(given(source, other)) is not False for other in others):
            change(source, ("flash_attention",), True, cause=("xformers_attention",))
        message = "`xformers_attention` is not supported; varlen flash attention computes the same"
        moved(source, ("xformers_attention",), message, "warning")
    if given(source, "attn_implementation") == "xformers":
        change(source, ("attn_implementation",), "flash_attention_2")
        message = "xformers is not supported; varlen flash attention computes the same"
        moved(source, ("attn_implementation",), message, "warning")


def max_packed_sequence_len(source: Source) -> None:
    """The first kind of packing: documents joined up to a length, without isolation."""
    length = given(source, "max_packed_sequence_len")
    if length is None:
        return
    remove(source, ("max_packed_sequence_len",))
    if given(source, "sample_packing") is None:
        change(source, ("sample_packing",), True, cause=("max_packed_sequence_len",))
    if flag(given(source, "group_by_length")):
        change(source, ("group_by_length",), False)
        moved(source, ("group_by_length",), "`group_by_length` is not needed: packs have one length", "warning")
    full = given(source, "sequence_len")
    message = "`max_packed_sequence_len` is now `sample_packing: true`, which also keeps documents apart"
    if full != length:
        message += f"; packs are sequence_len ({full}) long, not {length}"
    moved(source, ("max_packed_sequence_len",), message, "warning")


def special_tokens(source: Source) -> None:
    """Special tokens once stood under `tokens`, as a mapping."""
    tokens = given(source, "tokens")
    if isinstance(tokens, dict):
        for key in list(tokens):
            rename(source, ("tokens", key), ("special_tokens", key))
        if not tokens:
            remove(source, ("tokens",))
        moved(source, ("tokens",), "special tokens stand under `special_tokens`; `tokens` is a list of tokens to add")


def eta_min(source: Source) -> None:
    """The lowest rate is given as a share of the peak."""
    low, peak = given(source, "eta_min"), given(source, "learning_rate")
    low, peak = as_number(low), as_number(peak)
    if low is None or not peak:
        return
    remove(source, ("eta_min",))
    ratio, written = float(f"{low / peak:.6g}"), as_number(given(source, "cosine_min_lr_ratio"))
    same = given(source, "cosine_min_lr_ratio") if written is not None and isclose(written, ratio, rel_tol=1e-4) else ()
    if restate(source, ("eta_min",), ("cosine_min_lr_ratio",), ratio, gives_way=(same,)):
        moved(source, ("eta_min",), f"`eta_min` is now `cosine_min_lr_ratio: {ratio}`", "warning")


def torch_dtype(source: Source) -> None:
    """The dtype of computation is said by bf16 and fp16."""
    named = {"bfloat16": "bf16", "float16": "fp16", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
    dtype = given(source, "torch_dtype")
    key = named.get(dtype) if isinstance(dtype, str) else None
    if key:
        remove(source, ("torch_dtype",))
        if restate(source, ("torch_dtype",), (key,), True, gives_way=("auto",)):
            moved(source, ("torch_dtype",), f"`torch_dtype` is now `{key}: true`")


def trackers(source: Source) -> None:
    """`report_to` and a `wandb` section are said by `use_...`."""
    report = given(source, "report_to")
    if report is not None and "${" not in str(report):
        remove(source, ("report_to",))
        for name in report if isinstance(report, list) else [report]:
            tracker(source, "none" if name is None or name is False else str(name))
    section = given(source, "wandb")
    if isinstance(section, dict):
        for key in list(section):
            renamed(source, ("wandb", key), ("use_wandb" if key == "enabled" else f"wandb_{key}",))
        remove(source, ("wandb",))


def tracker(source: Source, name: str) -> None:
    """One name under `report_to`: a key of today, or a warning that nothing is sent there."""
    if name in TRACKERS:
        key, value = TRACKERS[name]
        if restate(source, ("report_to",), (key,), value):
            moved(source, ("report_to",), f"`report_to: {name}` is now `{key}: {str(value).lower()}`")
    elif name in TRACKERS_BY_PLACE:
        key = TRACKERS_BY_PLACE[name]
        if given(source, key) is not None:
            moved(source, ("report_to",), f"`report_to: {name}` is not needed: `{key}` says it")
        else:
            message = f"`report_to: {name}` has no effect without `{key}`"
            source.note("no-effect", ("report_to",), message, f"set {key}", severity="warning")
    else:
        message = f"`report_to: {name}` has no effect: no tracker of this name is supported"
        help = f"one of {', '.join((*TRACKERS, *TRACKERS_BY_PLACE))}; metrics.jsonl is always written"
        source.note("no-effect", ("report_to",), message, help, severity="warning")


def optimizer(source: Source) -> None:
    """Optimizers by their other names."""
    name = given(source, "optimizer")
    if isinstance(name, str) and name in OPTIMIZERS_RENAMED:
        new, difference = OPTIMIZERS_RENAMED[name]
        change(source, ("optimizer",), new)
        severity = "note" if difference.startswith("the same") else "warning"
        moved(source, ("optimizer",), f"optimizer {name} is {new} here: {difference}", severity)


def sharegpt_roles(source: Source) -> None:
    """`field_human` and `field_model` named the roles of a conversation."""
    for path, entry in dataset_entries(source):
        for old, role in (("field_human", "user"), ("field_model", "assistant")):
            name = entry.get(old)
            if isinstance(name, str):
                remove(source, (*path, old))
                change(source, (*path, "roles", role), [name], cause=(*path, old))
                moved(source, (*path, old), f"`{old}: {name}` is now `roles: {{{role}: [{name}]}}`")


def prompt_style(source: Source) -> None:
    """`prompt_style: chat` is part of the type."""
    for path, entry in dataset_entries(source):
        style, kind = entry.get("prompt_style"), entry.get("type")
        if isinstance(style, str) and isinstance(kind, str):
            remove(source, (*path, "prompt_style"))
            if style != "instruct" and ":" not in kind:
                change(source, (*path, "type"), f"{kind}:{style}", cause=(*path, "prompt_style"))
            moved(source, (*path, "prompt_style"), f"`prompt_style: {style}` is now `type: {entry['type']}`")


def unused_noise(source: Source) -> None:
    """Noise of 0 is no noise."""
    if given(source, "neftune_noise_alpha") == 0:
        remove(source, ("neftune_noise_alpha",))


def as_number(value: Any) -> float | None:
    """A number, also one written as text."""
    try:
        return None if isinstance(value, bool | dict | list) or value is None else float(value)
    except (ValueError, OverflowError):
        return None


def whole(value: Any) -> int | None:
    """A whole number, also one written as text or with a point."""
    number = as_number(value)
    return int(number) if number is not None and number.is_integer() else None


MIGRATIONS: tuple[Migration, ...] = (
    batch_size,
    base_model_config,
    load_4bit,
    half_precision,
    warmup_share,
    templates,
    bnb_config_kwargs,
    attention,
    max_packed_sequence_len,
    special_tokens,
    eta_min,
    torch_dtype,
    trackers,
    optimizer,
    sharegpt_roles,
    prompt_style,
    unused_noise,
)
# Keys that the functions above read, so that they are known, each to the key that stands for it today.
RESTRUCTURED: Mapping[str, str] = {
    "batch_size": "gradient_accumulation_steps",
    "load_4bit": "load_in_4bit",
    "float16": "fp16",
    "bfloat16": "bf16",
    "bnb_config_kwargs": "bnb_4bit_use_double_quant",
    "max_packed_sequence_len": "sample_packing",
    "eta_min": "cosine_min_lr_ratio",
    "torch_dtype": "bf16",
    "report_to": "use_wandb",
    "wandb": "use_wandb",
}
