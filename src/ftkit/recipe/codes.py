"""What each kind of problem means, for `ftkit check --explain CODE`.

Rules explain themselves by their docstring; the kinds below come up while a recipe is read and brought up to date. A
code is stable: it may be searched for, and named in scripts that read `--json`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType

from ftkit.recipe.rule import RULES
from ftkit.recipe.rule.base import code_of

READING: Mapping[str, str] = MappingProxyType(
    {
        "unreadable": "There is no such file, or it cannot be opened.",
        "encoding": "The file is not UTF-8. Editors call the right choice `UTF-8` or `UTF-8 without BOM`.",
        "syntax": (
            "The file is not YAML. Usual causes: an indentation that does not fit the line above, a tab, a quote"
            " that is not closed, a value that starts with a backtick, @ or %, or two `key: value` pairs in one line."
        ),
        "empty": "The file holds no key. A recipe needs `base_model` and `datasets` at least.",
        "not-a-mapping": "The file is YAML, but a list or a single word: a recipe is lines of `key: value`.",
        "too-large": "The file unfolds to more values than any recipe has; aliases that refer to one another do that.",
        "odd-space": (
            "Web pages put spaces into text that look like plain ones and are not. Around keys and values they are read"
            " as plain ones; inside a quoted text they stay."
        ),
        "alias-loop": "A YAML alias (`*name`) stands inside its own anchor (`&name`), so its value would have no end.",
        "bad-key": "A key is a list or a mapping, because of a stray `- `, `[`, `{` or `? `. Keys are words.",
        "bad-merge": "`<<` takes the keys of another mapping; what follows it is none.",
        "duplicate-key": (
            "A key stands twice. Most readers take the last one without a word, so that the first, which may be the one"
            " you see, does nothing. It is an error where the values differ and a warning where they are the same."
        ),
        "interleave": (
            "A file of slices (`ftkit interleave`) says something that cannot be stacked: an unknown key, another merge"
            " method, a range outside its model."
        ),
        "override": "A word after the file is not `key=value`, or its key leads nowhere. Dots go deeper.",
        "unknown-key": (
            "No key has this name at this place. Most are misspelt; the nearest real one is suggested. It is never"
            " ignored: a setting you believe in would be missing. With --lenient it is a warning."
        ),
        "missing": "A key that has no default is not given.",
        "type": (
            "The value is not what the key takes. Numbers are read as YAML 1.2 reads them: 2e-4 and 1e5 are numbers,"
            " 010 is ten. A key that is true or false takes yes, no, on and off too."
        ),
        "placeholder": (
            "A `${NAME}` was never filled in: the recipe is a template for another program. ftkit reads no environment"
            " variables from recipes; write the value, or give it on the command line."
        ),
    }
)
RENEWING: Mapping[str, str] = MappingProxyType(
    {
        "migrated": (
            "The recipe is in an older dialect and was understood. A note: only names changed. A warning: the run"
            " differs from what the older tool made of it. `ftkit migrate` shows the change, `--write` makes it."
        ),
        "migration-clash": "An old name of a key and its new name both stand there, with different values.",
        "not-migrated": (
            "`ftkit migrate` reads its own result back, and it did not say the same as before. The file stays as it is."
        ),
        "batch-size": (
            "`batch_size` was the batch of an optimizer step. Accumulation is batch_size / micro_batch_size, which here"
            " is not a whole number."
        ),
        "no-effect": (
            "The key is known and changes nothing here, for the reason given: ftkit does it always, or never, or it"
            " belongs to other machinery. It is a warning where something you asked for will not happen."
        ),
        "refused": (
            "The key is known, and asks for what ftkit does not do (yet). The reason and an alternative stand in the"
            " message. A key of this kind that is off (false, 0, empty) is only noted."
        ),
        "unknown-type": "A data set's `type` names how rows are read; no format has this name.",
        "deepspeed-file": (
            "`deepspeed` names a file. It is looked for as it stands, then beside the recipe; for the file names that"
            " everybody uses (zero2.json, zero3_bf16.json, ...) ftkit has configurations of its own."
        ),
    }
)


def explain(code: str) -> str | None:
    """What a problem's code means, or None where there is no such code."""
    return explanations().get(code)


def explanations() -> dict[str, str]:
    """Every code with its explanation."""
    of_rules = {code_of(rule): inspect.cleandoc(rule.__doc__ or "") for rule in RULES}
    return {**READING, **RENEWING, **of_rules}
