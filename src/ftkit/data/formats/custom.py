"""A type written into the recipe: format strings over columns of the data set's own.

type:
  field_instruction: question
  field_input: context
  field_output: answer
  format: "[INST] {input} {instruction} [/INST]"
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter as Fields

from ftkit.data.formats.alpaca import AlpacaFormat, Prompt
from ftkit.data.formats.fields import Formatter
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection

DEFAULTS: Mapping[str, str] = {
    "system_prompt": "",
    "system_format": "{system}",
    "field_system": "system",
    "field_instruction": "instruction",
    "field_input": "input",
    "field_output": "output",
    "format": "{instruction} {input} ",
    "no_input_format": "{instruction} ",
}


def build(dataset: DatasetSection) -> Formatter:
    """A formatter from the recipe's own format strings.

    Raises:
        DataError: an unknown key, or a format string with a field that does not exist.
    """
    given = dataset.type if isinstance(dataset.type, Mapping) else {}
    unknown = [key for key in given if key not in DEFAULTS]
    if unknown:
        raise DataError(
            f"unknown key of a user-defined type, got {', '.join(unknown)}",
            where=dataset.path,
            help=f"use some of {', '.join(DEFAULTS)}",
        )
    keys = dict(DEFAULTS) | {key: str(value) for key, value in given.items() if value is not None}
    if "format" in given and "no_input_format" not in given:
        keys["no_input_format"] = keys["format"]
    _check(keys["system_format"], {"system"}, dataset)
    for name in ("format", "no_input_format"):
        _check(keys[name], {"instruction", "input", "system"}, dataset)
    return AlpacaFormat(
        Prompt(keys["format"], keys["no_input_format"], keys["system_format"], "", ""),
        instruction=keys["field_instruction"],
        input=keys["field_input"],
        output=keys["field_output"],
        system=keys["field_system"],
        system_prompt=keys["system_prompt"] or None,
    )


def _check(text: str, known: set[str], dataset: DatasetSection) -> None:
    try:
        names = [name for _, name, _, _ in Fields().parse(text) if name is not None]
    except ValueError as bad:
        raise DataError(
            f"not a format string: {bad}, got {text!r}", where=dataset.path, help="write a brace of the text twice: {{"
        ) from None
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DataError(
            f"a format string names a field that does not exist, got {{{unknown[0]}}}",
            where=dataset.path,
            help=f"use {', '.join(f'{{{name}}}' for name in sorted(known))}; write a brace of the text twice",
        )
