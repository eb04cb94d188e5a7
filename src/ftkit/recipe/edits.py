"""Changes to a recipe's values before they are checked: rename a key, set one, remove one; each recorded and noted.

The record (`Source.edits`) lets `ftkit migrate` make the same changes to the file itself, so that a recipe means the
same before and after. Marks move along, so that a problem with a renamed key points to where the file says it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ftkit.recipe.fit import flag
from ftkit.recipe.source import Path, Source, dotted


class Edit(NamedTuple):
    """One change. Paths are those of the moment it is made.

    Args:
        op: `rename` (to `target`), `set` (to `value`) or `remove`.
    """

    op: str
    path: Path
    target: Path = ()
    value: Any = None


def value_at(data: Any, path: Path) -> Any:
    """The value at `path`, or None where there is none."""
    for step in path:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def rename(source: Source, old: Path, new: Path) -> bool:
    """Move the value at `old` to `new`.

    If `new` has a value too, the command line goes before the file; else the two must agree, or that is an error.

    Returns:
        whether `new` now holds what it should.
    """
    value, there = value_at(source.data, old), value_at(source.data, new)
    if there is not None and (there == value or is_overridden(source, new)):
        remove(source, old)
        return True
    if there is not None and not is_overridden(source, old):
        message = f"`{dotted(old)}` is an old name of `{dotted(new)}`, and the two differ"
        source.note("migration-clash", old, message, "keep one of them", at_key=True)
        take(source.data, old)
        return False
    source.edits.append(Edit("rename", old, new))
    take(source.data, old)
    place(source.data, new, value)
    for marks in (source.keys, source.values, source.raw):
        move(marks, old, new)
    if is_overridden(source, old):
        source.overridden.add(new)
    source.renamed[new] = old
    return True


def restate(source: Source, old: Path, new: Path, value: Any, *, gives_way: tuple[Any, ...] = ()) -> bool:
    """Say `value` at `new`, which is what the key at `old` means today; `old` itself is left to the caller.

    If `new` has another value already, the command line goes before the file; else that is an error, as in `rename`.

    Args:
        gives_way: values of `new` that contradict nothing.

    Returns:
        whether `new` now holds `value`.
    """
    there = value_at(source.data, new)
    if there is None or there in gives_way or is_overridden(source, old):
        change(source, new, value, cause=old)
        return True
    if there == value or (isinstance(value, bool) and flag(there) is value):
        return True
    if not is_overridden(source, new):
        shown = str(value).lower() if isinstance(value, bool) else value
        message = f"`{dotted(old)}` is an old way to say `{dotted(new)}: {shown}`, and `{dotted(new)}` says otherwise"
        source.note("migration-clash", old, message, "keep one of them", at_key=True)
    return False


def is_overridden(source: Source, path: Path) -> bool:
    """Whether the command line gave the value at `path`."""
    return any(path[:depth] in source.overridden for depth in range(1, len(path) + 1))


def change(source: Source, path: Path, value: Any, *, cause: Path | None = None) -> None:
    """Set the value at `path`; problems with it point to `cause` (default: `path` itself)."""
    cause = cause or path
    source.edits.append(Edit("set", path, value=value))
    for marks in (source.keys, source.values):
        mark = marks.get(cause)
        if mark is not None:
            marks.setdefault(path, mark)
    if cause in source.overridden:
        source.overridden.add(path)
    source.raw.pop(path, None)
    source.renamed.setdefault(path, cause)
    place(source.data, path, value)


def remove(source: Source, path: Path) -> None:
    """Take the key at `path` out; its mark stays, for messages about it."""
    source.edits.append(Edit("remove", path))
    take(source.data, path)


def take(data: Any, path: Path) -> None:
    """Delete what is at `path`."""
    holder = value_at(data, path[:-1])
    if isinstance(holder, dict):
        holder.pop(path[-1], None)


def place(data: Any, path: Path, value: Any) -> None:
    """Put `value` at `path`, making mappings on the way (also where a null stands).

    Where something else stands in the way nothing is put: that value is of the wrong kind, an error of its own.
    """
    for step in path[:-1]:
        if isinstance(data, dict) and data.get(step) is None:
            data[step] = {}
        data = data[step]
        if not isinstance(data, dict | list):
            return
    if isinstance(data, dict):
        data[path[-1]] = value


def move(marks: dict[Path, Any], old: Path, new: Path) -> None:
    """Copy the entries at and below `old` to the same places below `new`."""
    for path in [path for path in marks if path[: len(old)] == old]:
        marks[(new + path[len(old) :])] = marks[path]
