"""What becomes of the keys that no section holds: refused, without effect, or unknown. None goes without a word."""

from __future__ import annotations

from typing import Any

from ftkit.recipe.fit import placeholders_within, unknown_key
from ftkit.recipe.keys import HOLDERS
from ftkit.recipe.migrations import RESTRUCTURED
from ftkit.recipe.no_effect import IS_WARNED, NO_EFFECT
from ftkit.recipe.refused import OF_OTHER_TOOLS, REFUSED, asks_for_nothing
from ftkit.recipe.renames import RENAMED
from ftkit.recipe.source import Source

# Plugins of axolotl by the last part of their name: what they do here.
PLUGINS = {
    "CutCrossEntropyPlugin": "ftkit picks its fused paths by itself",
    "LigerPlugin": "ftkit picks its fused paths by itself",
    "KernelsPlugin": "ftkit picks its fused paths by itself",
    "ExpertParallelPlugin": "fsdp and deepspeed shard experts like all other weights",
}
KNOWN = (*HOLDERS, *RENAMED, *RESTRUCTURED, *NO_EFFECT, *REFUSED, "plugins")


def judge(source: Source, *, lenient: bool) -> None:
    """Take every key that no section holds out of `source.data`, and say why."""
    for key in [key for key in source.data if key not in HOLDERS]:
        value = source.data.pop(key)
        if value is None:
            if key not in KNOWN:
                unknown_key(source, (key,), KNOWN, lenient=True)
        elif placeholders_within(source, value, (key,)):
            pass
        elif key == "plugins":
            plugins(source, value)
        elif key in NO_EFFECT:
            severity = "warning" if key in IS_WARNED and not asks_for_nothing(key, value) else "note"
            message = f"`{key}` has no effect: {NO_EFFECT[key]}"
            source.note("no-effect", (key,), message, severity=severity, at_key=True)
        elif key in REFUSED:
            refuse(source, key, value)
        elif key in RESTRUCTURED:
            message = f"`{key}` cannot be read as its successor `{RESTRUCTURED[key]}`"
            source.note("type", (key,), message, f"set {RESTRUCTURED[key]}")
        else:
            unknown_key(source, (key,), KNOWN, lenient=lenient)


def refuse(source: Source, key: str, value: Any) -> None:
    """Refuse a key that asks for what ftkit does not do; note one that is off."""
    reason, help = REFUSED[key]
    if asks_for_nothing(key, value):
        source.note("no-effect", (key,), f"`{key}` is off, and has no effect: {reason}", severity="note", at_key=True)
    else:
        severity = "warning" if key in OF_OTHER_TOOLS else "error"
        source.note("refused", (key,), f"`{key}`: {reason}", help, severity=severity, at_key=True)


def plugins(source: Source, value: Any) -> None:
    """Name each plugin: without effect if ftkit does what it does, refused otherwise."""
    for index, name in enumerate(value if isinstance(value, list) else [value]):
        path = ("plugins", index) if isinstance(value, list) else ("plugins",)
        why = PLUGINS.get(str(name).rpartition(".")[2])
        if why:
            source.note("no-effect", path, f"plugin {name} has no effect: {why}", severity="note")
        else:
            help = "remove it; ftkit runs no code of other tools"
            source.note("refused", path, f"plugin {name} is not supported", help)
