"""The forms of a data set's `type`: a name, a name with a style, a name with a loader, a mapping of formats, or none.

alpaca                            a name
alpaca:chat, sharegpt:chat        a name and the style of its prompts
alpaca_w_system.load_open_orca    a name and a loader
sharegpt + conversation: chatml   a name and, beside it, a template
{format: ..., field_output: ...}  formats of one's own
(none)                            told by the rows
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ftkit.catalog import FORMATS
from ftkit.recipe.edits import change, remove
from ftkit.recipe.fit import unknown_key
from ftkit.recipe.keys import nearest
from ftkit.recipe.migrations import dataset_entries, moved
from ftkit.recipe.refused import PAIRS, REFUSED_OF_DATASETS
from ftkit.recipe.source import Path, Source

# Types that meant what another one means.
SAME_AS: Mapping[str, str] = MappingProxyType(
    {
        "sharegpt:chat": "sharegpt",
        "sharegpt.load": "sharegpt",
        "sharegpt.load_role": "sharegpt",
        "sharegpt_simple": "sharegpt",
        "sharegpt_simple.load": "sharegpt",
        "sharegpt_simple.load_role": "sharegpt",
        "chat_template.load": "chat_template",
        "alpaca:instruct": "alpaca",
        "alpaca_instruct": "alpaca",
        "alpaca_chat:chat": "alpaca_chat",
        "gpteacher:instruct": "gpteacher",
        "context_qa.load": "context_qa",
        "context_qa.load_v2": "context_qa",
    }
)
# The first part of types that hold pairs, rewards or code of one's own.
OF_PAIRS = ("bradley_terry", "rwd", "grpo", "ebft", "stepwise_supervised", "llama3", "zephyr", "ipo", "orpo", "kto")
COLUMNS = ("field_prompt", "field_completion")  # together a format of one's own, alone a part of pairs
PAIR_LOADERS = ("argilla", "argilla_chat", "intel", "icr", "prompt_pairs", "ultra")
OWN_KEYS = (
    "field_instruction",
    "field_input",
    "field_output",
    "field_system",
    "format",
    "no_input_format",
    "system_prompt",
    "system_format",
)
# What these asked for, data sets have always done here.
IDLE = {
    "trust_remote_code": "data sets come as files; none runs code",
    "preprocess_shards": "rows are read in one pass",
}


def normalise_types(source: Source, *, lenient: bool) -> None:
    """Bring the type of every data set into a form that `catalog.FORMATS` knows, or say why that cannot be."""
    for path, entry in dataset_entries(source):
        for key, why in IDLE.items():
            if entry.get(key) is not None:
                source.note("no-effect", (*path, key), f"`{key}` has no effect: {why}", severity="note", at_key=True)
                entry.pop(key)
        prompt_and_completion(source, path, entry)
        if not refuse_pairs(source, path, entry):
            kind = entry.get("type")
            if isinstance(kind, str) and "$" not in kind:
                check_name(source, path, kind)
            elif isinstance(kind, int | float) and not isinstance(kind, bool):  # a flag does not fit text anyway
                message = f"`type` must be text or a mapping, got {kind}"
                source.note("type", (*path, "type"), message, f"one of {', '.join(sorted(FORMATS))}")
                entry.pop("type")
            elif isinstance(kind, dict):
                for key in (key for key in kind if key not in OWN_KEYS):
                    unknown_key(source, (*path, "type", key), OWN_KEYS, lenient=lenient)


def prompt_and_completion(source: Source, path: Path, entry: dict[str, Any]) -> None:
    """A pair of columns, prompt and completion, is a format of one's own: the second is trained."""
    prompt, completion = (entry.get(key) for key in COLUMNS)
    if isinstance(prompt, str) and isinstance(completion, str) and entry.get("type") in (None, "completion"):
        for key in COLUMNS:
            remove(source, (*path, key))
        formats = {"format": "{instruction}", "no_input_format": "{instruction}"}
        kind = {"field_instruction": prompt, "field_output": completion, **formats}
        change(source, (*path, "type"), kind, cause=(*path, "field_prompt"))
        message = "`field_prompt` and `field_completion` are read as a format of your own under `type`"
        moved(source, (*path, "field_prompt"), message, "warning")


def refuse_pairs(source: Source, path: Path, entry: dict[str, Any]) -> bool:
    """Refuse keys of preference data, once per data set; whether there were any."""
    found = [key for key in entry if key in REFUSED_OF_DATASETS and entry[key] is not None]
    for index, key in enumerate(found):
        if index == 0:
            source.note("refused", (*path, key), f"`{key}`: {PAIRS.reason}", PAIRS.help, at_key=True)
        entry.pop(key)
    return bool(found)


def check_name(source: Source, path: Path, kind: str) -> None:
    """A type by name: known, another name of a known one, or refused."""
    where = (*path, "type")
    if kind in FORMATS:
        return
    if kind in SAME_AS and SAME_AS[kind] in FORMATS:
        change(source, where, SAME_AS[kind])
        moved(source, where, f"type {kind} is `{SAME_AS[kind]}`")
        return
    first, _, loader = kind.partition(".")
    if first.split("_")[0] in OF_PAIRS or first in OF_PAIRS or loader in PAIR_LOADERS:
        source.note("refused", where, f"type {kind}: {PAIRS.reason}", PAIRS.help)
        return
    guess = nearest(kind, FORMATS)
    names = ", ".join(sorted(FORMATS))
    help = f"did you mean `{guess}`?" if guess else f"one of {names}; or a mapping of formats of your own"
    source.note("unknown-type", where, f"no type of data set is called `{kind}`", help)
