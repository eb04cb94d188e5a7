"""Which keys of a data set's entry the rows of each type read. A key that is given and not in here is spoken about.

`tests/recipe/test_dataset_keys.py` holds the table against what the formats look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

# Read for every type, by what finds the rows and mixes them.
ALWAYS = "path type split data_files ds_type shards shards_idx weight name revision"
OF_ALL = frozenset(ALWAYS.split())
# Read for rows that become conversations, by the chat template and the mask rules.
OF_TEMPLATE = frozenset({"chat_template", "conversation", "roles_to_train", "train_on_eos"})
TURNS = (
    "field_messages message_field_role message_field_content message_property_mappings roles field_system system_prompt"
    " field_tools field_thinking template_thinking_key split_thinking message_field_training"
    " message_field_training_detail drop_system_message"
)
COLUMNS = "field_instruction field_input field_output field_system system_prompt"
# The first word of a type -> what its format reads. A type of one's own says everything under `type`.
OF_FORMAT: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "sharegpt": frozenset(TURNS.split()),
        "chat_template": frozenset(TURNS.split()),
        "query_response": frozenset({"field_instruction", "field_output", "field_system", "system_prompt"}),
        "oasst": frozenset(),
        **dict.fromkeys(
            ("alpaca", "alpaca_chat", "alpaca_w_system", "context_qa", "gpteacher", "reflection"),
            frozenset(COLUMNS.split()),
        ),
        "custom": frozenset(),
        "completion": frozenset({"field"}),
        "pretrain": frozenset({"field"}),
        "input_output": frozenset({"field"}),
        "pretokenized": frozenset(),
    }
)
CONVERSATIONS = frozenset({"sharegpt", "chat_template", "query_response", "oasst"})
# Keys that say what is learned, and a value by which they ask for nothing else than happens anyway.
LEARNED: Mapping[str, Any] = MappingProxyType(
    {
        "system_prompt": "",
        "field_system": "",
        "roles_to_train": ("assistant",),
        "train_on_eos": "turn",
        "message_field_training": "",
        "message_field_training_detail": "",
        "drop_system_message": False,
    }
)
OF_THE_HUB = ("name", "revision")
ENDINGS = frozenset({"json", "jsonl", "ndjson", "csv", "tsv", "parquet", "arrow", "txt", "text", "md"})


def kind_of(type_: object) -> str:
    """The format that reads a data set: `alpaca:chat` -> `alpaca`; rows without a type can only be tokens."""
    if isinstance(type_, Mapping):
        return "custom"
    return str(type_ or "pretokenized").partition(".")[0].partition(":")[0]


def keys_read(type_: object) -> frozenset[str] | None:
    """The keys that a data set of this type reads; None for a type that does not exist."""
    kind = kind_of(type_)
    if kind not in OF_FORMAT:
        return None
    return OF_ALL | OF_FORMAT[kind] | (OF_TEMPLATE if kind in CONVERSATIONS else frozenset())


def help_for(type_: object, key: str) -> str:
    """How to mend an entry with a key that its type does not read."""
    if isinstance(type_, Mapping) and key in OF_FORMAT["alpaca"]:
        return "write it under `type`"
    read = sorted((keys_read(type_) or OF_ALL) - OF_ALL - {"conversation"})
    return f"take it out; this type reads {', '.join(read)}" if read else "take it out"


def unread(dataset: Any) -> list[str]:
    """The given keys of an entry that nothing reads, those that ask for nothing left out."""
    read = keys_read(dataset.type)
    given = [name for name in type(dataset).model_fields if name in dataset.model_fields_set and getattr(dataset, name)]
    return [] if read is None else [name for name in given if name not in read]


def changes_learning(key: str, value: Any) -> bool:
    """Whether leaving the key out of account would train on something else than was asked for."""
    return key in LEARNED and value != LEARNED[key]


def is_file(path: str) -> bool:
    """Whether the rows lie in files, here or at an address, and not in a data set of the hub."""
    at_a_place = path.startswith((".", "/", "~", "\\")) or "://" in path or "*" in path or path[1:3] == ":\\"
    return at_a_place or path.rpartition(".")[2].lower() in ENDINGS or Path(path).expanduser().exists()
