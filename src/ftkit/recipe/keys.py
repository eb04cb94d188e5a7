"""Which section holds a YAML key, and what a key that no section holds was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ftkit.recipe.recipe import SECTIONS
from ftkit.recipe.section.base import Section


def yaml_keys(section: type[Section]) -> dict[str, str]:
    """YAML key -> field name of one section; they differ only for `model_config`."""
    return {info.alias or name: name for name, info in section.model_fields.items()}


HOLDERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {key: (section, name) for section, kind in SECTIONS.items() for key, name in yaml_keys(kind).items()}
)

# What other tools call these keys.
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "accumulate_grad_batches": "gradient_accumulation_steps",
        "cutoff_len": "sequence_len",
        "dataset": "datasets",
        "finetuning_type": "adapter",
        "grad_accum_steps": "gradient_accumulation_steps",
        "lora_rank": "lora_r",
        "lora_target": "lora_target_modules",
        "lr": "learning_rate",
        "lr_scheduler_type": "lr_scheduler",
        "max_length": "sequence_len",
        "max_seq_len": "sequence_len",
        "max_seq_length": "sequence_len",
        "model_max_length": "sequence_len",
        "model_name_or_path": "base_model",
        "num_train_epochs": "num_epochs",
        "optim": "optimizer",
        "packing": "sample_packing",
        "per_device_eval_batch_size": "eval_batch_size",
        "per_device_train_batch_size": "micro_batch_size",
        "target_modules": "lora_target_modules",
        "template": "chat_template",
    }
)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, or None when nothing is like it.

    What other tools call a key leads to it. A key with one letter wrong, missing, doubled or two swapped is always
    found; ties go to the same length.
    """
    import difflib  # only recipes with a mistake need it

    known = list(known)
    if ELSEWHERE.get(word.lower()) in known:
        return ELSEWHERE[word.lower()]
    candidates = difflib.get_close_matches(word, known, n=5, cutoff=0.72)
    return min(candidates, key=lambda c: (edits(word, c), abs(len(c) - len(word)), c)) if candidates else None


def edits(a: str, b: str) -> int:
    """Smallest number of inserted, deleted, changed or swapped neighbouring letters between `a` and `b`.

    Source: Damerau 1964 (optimal string alignment).
    """
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]
