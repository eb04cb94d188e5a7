"""The JSON Schema of recipes, for editors: made from the sections' fields and the tables of old and refused keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from ftkit.catalog import FORMATS, OPTIMIZERS, SCHEDULES, TEMPLATES
from ftkit.recipe.dataset_types import COLUMNS
from ftkit.recipe.fit import arms, expected
from ftkit.recipe.fsdp import NO_EFFECT as FSDP_IDLE
from ftkit.recipe.fsdp import SETTINGS as FSDP_SETTINGS
from ftkit.recipe.keys import yaml_keys
from ftkit.recipe.migrations import RESTRUCTURED
from ftkit.recipe.no_effect import NO_EFFECT
from ftkit.recipe.recipe import SECTIONS
from ftkit.recipe.refused import HARMLESS, OF_OTHER_TOOLS, OFF, REFUSED, REFUSED_OF_DATASETS
from ftkit.recipe.renames import (
    OPTIMIZERS_RENAMED,
    RENAMED,
    RENAMED_OF_DATASETS,
    TEMPLATES_OF_MODELS,
    TEMPLATES_RENAMED,
)
from ftkit.recipe.section.base import Section
from ftkit.recipe.section.frozen import FrozenMap

Schema = dict[str, Any]
NULL: Schema = {"type": "null"}  # the same as an absent key, everywhere
# Types as JSON Schema names them; a number where text is wanted is taken as it is written.
SIMPLE: Mapping[Any, list[str]] = {
    bool: ["boolean"],
    int: ["integer"],
    float: ["number"],
    str: ["string", "number"],
    FrozenMap: ["object"],
    type(None): ["null"],
    Any: ["array", "boolean", "number", "object", "string"],
}
# Keys whose text is a name: those that have a part of ftkit behind them, and whether others may stand there.
TEMPLATE_NAMES = (*TEMPLATES, *TEMPLATES_RENAMED, *sorted(TEMPLATES_OF_MODELS), "tokenizer_default", "jinja")
NAMES: Mapping[str, tuple[str, ...]] = {
    "optimizer": (*OPTIMIZERS, *OPTIMIZERS_RENAMED),
    "lr_scheduler": tuple(SCHEDULES),
    "chat_template": TEMPLATE_NAMES,
    "conversation": TEMPLATE_NAMES,
    "type": tuple(FORMATS),
}
CLOSED = frozenset({"optimizer", "lr_scheduler"})
# Forms of older dialects that are still read.
OLD_FORMS: Mapping[str, Schema] = {
    "tokens": {"type": "object", "description": "Special tokens stand under special_tokens."},
    "fsdp": {"type": ["boolean", "string"], "description": "Write a list."},
    "deepspeed": {"type": "boolean", "description": "Take it out."},
    "warmup_steps": {"type": "number", "description": "A share goes into warmup_ratio."},
}


def recipe_schema() -> Schema:
    """The schema of a whole recipe, draft 7, which yaml-language-server reads."""
    definitions: dict[str, Schema] = {}
    keys: dict[str, Schema] = {}
    for kind in SECTIONS.values():
        keys |= fields_of(kind, definitions)
    keys["fsdp_config"] |= {"properties": fsdp_settings(definitions)}
    old = {
        **dict.fromkeys(RESTRUCTURED),
        **dict.fromkeys(RENAMED),
        **dict.fromkeys(NO_EFFECT),
        **dict.fromkeys(REFUSED),
    }
    keys |= {key: outdated(key) for key in sorted(old) if key not in keys}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "ftkit recipe",
        "type": "object",
        "properties": {
            **keys,
            "plugins": {"type": ["array", "null"], "description": "Plugins of axolotl; none is run."},
        },
        "required": ["base_model"],
        "additionalProperties": False,
        "definitions": definitions,
    }


def fields_of(kind: type[Section], definitions: dict[str, Schema]) -> dict[str, Schema]:
    """YAML key -> schema, for the fields of one section."""
    found: dict[str, Schema] = {}
    for key, name in yaml_keys(kind).items():
        field = kind.model_fields[name]
        schema = named(key, schema_of(field.annotation, definitions))
        if isinstance(field.default, bool | int | float | str):
            schema["default"] = field.default
        schema = {"anyOf": [schema, OLD_FORMS[key]]} if key in OLD_FORMS else schema
        found[key] = {**schema, "description": field.description or ""}
    return found


def schema_of(annotation: Any, definitions: dict[str, Schema]) -> Schema:
    """A type's schema, null allowed."""
    types: list[str] = []
    others: list[Schema] = []
    for arm in (*arms(annotation), type(None)):
        if arm in SIMPLE:
            types += [name for name in SIMPLE[arm] if name not in types]
        elif get_origin(arm) is Literal:
            others.append({"enum": list(get_args(arm))})
        elif get_origin(arm) is tuple:
            others.append({"type": "array", "items": schema_of(get_args(arm)[0], definitions)})
        else:
            others.append({"$ref": f"#/definitions/{define(arm, definitions)}"})
    simple: Schema = {"type": types[0] if len(types) == 1 else types}
    if not others:
        return simple
    # Of alternatives editors speak of the nearest alone; said here, each speaks of all.
    said = {"errorMessage": f"Expected {expected(annotation)}."}
    return {"anyOf": [arm if "$ref" in arm else {**arm, **said} for arm in (*others, simple)]}


def define(kind: type[Section], definitions: dict[str, Schema]) -> str:
    """Put a section that stands inside another into `definitions`; return its name there."""
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}
        properties = fields_of(kind, definitions)
        if "path" in properties:
            old = {**RENAMED_OF_DATASETS, **dict.fromkeys(REFUSED_OF_DATASETS, "")}
            properties |= {key: outdated_of_dataset(key) for key in old}
        required = [key for key, name in yaml_keys(kind).items() if kind.model_fields[name].is_required()]
        definitions[kind.__name__] = {
            "type": "object",
            "properties": properties,
            "additionalProperties": kind.__name__ == "DatasetSection",  # types may bring keys of their own
            **({"required": required} if required else {}),
        }
    return kind.__name__


def named(key: str, schema: Schema) -> Schema:
    """Add the names that `key` takes, for completion; a closed list refuses others."""
    if key not in NAMES:
        return schema
    names = {"enum": list(dict.fromkeys([*NAMES[key], None]))}  # editors refuse a schema that repeats a name
    return names if key in CLOSED else {"anyOf": [names, schema]}


def fsdp_settings(definitions: dict[str, Schema]) -> dict[str, Schema]:
    """What `fsdp_config` may hold, in today's dialect and with the prefix of 2023."""
    settings = {key: schema_of(kind, definitions) for key, kind in {**FSDP_SETTINGS, **FSDP_IDLE}.items()}
    old = {f"fsdp_{key}": {**schema, **unsuggested(f"Now called {key}.")} for key, schema in settings.items()}
    return {**settings, **old}


def outdated(key: str) -> Schema:
    """A key of another dialect: accepted, or refused as `ftkit check` refuses it."""
    if key in REFUSED and key not in OF_OTHER_TOOLS:
        return refused(f"{REFUSED[key].reason}; {REFUSED[key].help}", *([HARMLESS[key]] if key in HARMLESS else []))
    if key in REFUSED or key in NO_EFFECT:
        return unsuggested(f"No effect: {REFUSED[key].reason if key in REFUSED else NO_EFFECT[key]}.")
    return unsuggested(f"Now called {RENAMED.get(key) or RESTRUCTURED[key]}.")


def outdated_of_dataset(key: str) -> Schema:
    """The same for a key of a data set."""
    if key in RENAMED_OF_DATASETS:
        return unsuggested(f"Now called {RENAMED_OF_DATASETS[key]}.")
    if key in COLUMNS:
        return unsuggested("The columns of prompt and answer, one of one's own formats; alone: preference data.")
    return refused(f"{REFUSED_OF_DATASETS[key].reason}; {REFUSED_OF_DATASETS[key].help}")


def unsuggested(why: str) -> Schema:
    """A key that editors show and explain, but do not offer.

    Not `deprecationMessage`: yaml-language-server raises its warnings to errors, and such a key is none.
    """
    return {"description": why, "deprecated": True, "doNotSuggest": True}


def refused(why: str, *harmless: Any) -> Schema:
    """A key that may only say that it asks for nothing."""
    return {**unsuggested(f"Refused: {why}."), "enum": [None, *OFF, *harmless], "errorMessage": f"Refused: {why}."}
