"""Edits of a recipe's values, made to its text: comments, order, quotes and everything untouched stay as they are.

A YAML library that writes whole files moves comments and quotes around; here only the lines of an edited key change.
After each edit the text is read again, so that places are always those of the text as it is. What stands in flow style
(`{a: 1}`) is written anew as a whole, on one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import yaml

from ftkit.recipe.edits import Edit, place, take, value_at
from ftkit.recipe.source import Loader, Path, Reader, Source


class Entry(NamedTuple):
    """A key in the text: its node, its value's node, the mapping around both."""

    key: yaml.Node
    value: yaml.Node
    parent: yaml.Node

    @property
    def first(self) -> int:
        """The line of the key."""
        return int(self.key.start_mark.line)

    @property
    def last(self) -> int:
        """The last line of the value."""
        return last_line(self.value, self.first)


class AsWritten(str):
    """A value as it stands in the text, quotes and comment included."""


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return `text`, a clean block of YAML, with every edit made."""
    draft = Draft(text)
    for edit in edits:
        draft.apply(edit)
    return "\n".join(draft.lines)


class Draft:
    """Lines of a recipe, and where the last edit was: new keys go there."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.cursor = 0
        self.added: set[str] = set()
        self.read()

    def read(self) -> None:
        """Find the nodes of the text as it is."""
        self.root: yaml.Node | None = yaml.compose("\n".join(self.lines), Loader=Loader)

    def apply(self, edit: Edit) -> None:
        """Make one edit."""
        if edit.op == "rename" and edit.path[:-1] == edit.target[:-1] and self.is_block(edit.path):
            self.remove(edit.target)  # it stands there as a null, if at all
            self.read()
            self.rename(edit.path, str(edit.target[-1]))
        elif edit.op == "rename":
            value, above = self.written(edit.path), self.take_comments(edit.path)
            self.remove(edit.path)
            self.read()
            self.set(edit.target, value, above)
        elif edit.op == "remove":
            self.remove(edit.path)
        else:
            self.set(edit.path, edit.value)
        self.read()

    def rename(self, path: Path, name: str) -> None:
        """Put another name in the place of a key."""
        entry = self.entry(path)
        if entry is not None:
            line, start, end = entry.first, entry.key.start_mark.column, entry.key.end_mark.column
            self.lines[line] = self.lines[line][:start] + name + self.lines[line][end:]
            self.cursor = entry.last + 1

    def remove(self, path: Path) -> None:
        """Take a key and its value out; a list item that began with it begins with its next key."""
        entry = self.entry(path)
        if entry is None:
            return
        if not self.is_block(path):
            self.change_flow(path, lambda data, inner: take(data, inner))
            return
        prefix = self.lines[entry.first][: entry.key.start_mark.column]
        following = entry.parent.value.index((entry.key, entry.value)) + 1
        if prefix.strip() and following < len(entry.parent.value):
            line, column = place_of(entry.parent.value[following][0])
            self.lines[line] = prefix + self.lines[line][column:]
        elif prefix.strip():
            self.lines.insert(entry.last + 1, f"{prefix}{{}}")
        del self.lines[entry.first : entry.last + 1]
        self.cursor = entry.first

    def take_comments(self, path: Path) -> list[str]:
        """Cut out the comments right above a nested key, which are about it."""
        entry, above = self.entry(path), list[str]()
        while entry is not None and len(path) > 1 and self.is_block(path):
            line = self.lines[entry.first - 1]
            if not line.strip().startswith("#") or "- " in self.lines[entry.first][: entry.key.start_mark.column]:
                break
            above.insert(0, line.strip())
            del self.lines[entry.first - 1]
            self.read()
            entry = self.entry(path)
        return above

    def set(self, path: Path, value: Any, above: Sequence[str] = ()) -> None:
        """Give a key a value, making it and its parents where they are missing."""
        entry = self.entry(path)
        if entry is not None and self.is_block(path):
            self.replace(entry, value)
        elif entry is not None or not self.is_block(path):
            plain = plain_value(value) if isinstance(value, AsWritten) else value
            self.change_flow(path, lambda data, inner: place(data, inner, plain))
        else:
            self.add(path, value, above)

    def replace(self, entry: Entry, value: Any) -> None:
        """Write another value behind a key, before its comment."""
        line, column = place_of(entry.value)
        first = self.lines[entry.first]
        end = entry.key.end_mark.column + 1
        if line == entry.first and entry.last == line and column >= end:
            end = entry.value.end_mark.column
        head = first[: entry.key.end_mark.column]
        self.lines[entry.first : entry.last + 1] = [f"{head}: {flow(value)}".rstrip() + first[end:]]
        self.cursor = entry.first + 1

    def add(self, path: Path, value: Any, above: Sequence[str]) -> None:
        """Write a new key, with the parents that are missing, where the last edit was or behind its last sibling."""
        depth = len(path) - 1
        while depth and not isinstance(self.node(path[:depth]), yaml.MappingNode):
            depth -= 1
            value = {str(path[depth + 1]): value}
        parent = self.node(path[:depth])
        empty = self.entry(path[: depth + 1])  # a key that is there, without a value
        if empty is not None:
            self.remove(path[: depth + 1])
            self.read()
            parent = self.node(path[:depth])
        column, line = self.room(parent, depth)
        nested = len(path) - 1 > depth
        lines = block(str(path[depth]), value)
        lines[nested:nested] = ["  " * nested + comment for comment in above]
        new = [" " * column + text for text in lines]
        self.added.add(str(path[depth]))
        self.lines[line:line] = new
        self.cursor = line + len(new)

    def room(self, parent: Any, depth: int) -> tuple[int, int]:
        """Column and line for a new key of `parent`: at the cursor if that is between keys, else behind the last."""
        entries = [Entry(key, value, parent) for key, value in parent.value]
        column = entries[0].key.start_mark.column if entries else 0
        between = {entry.first for entry in entries[1:]} | {entry.last + 1 for entry in entries}
        if self.cursor in between:
            line = self.cursor
        elif depth:
            line = entries[-1].last + 1 if entries else len(self.lines)
        else:  # behind the top-level key that the last edit was in
            line = max((entry.last + 1 for entry in entries if entry.first <= self.cursor), default=0)
        for entry in entries:
            line = entry.last + 1 if entry.first == line and entry.key.value in self.added else line
        return column, line

    def change_flow(self, path: Path, change: Any) -> None:
        """Write the outermost flow collection around `path` anew, changed."""
        depth = next(n for n in range(len(path) + 1) if getattr(self.node(path[:n]), "flow_style", False))
        node = self.node(path[:depth])
        assert node is not None
        data = Reader(Source("", "")).value(node, ())
        change(data, path[depth:])
        (line, column), end = place_of(node), node.end_mark
        self.lines[line : end.line + 1] = [self.lines[line][:column] + flow(data) + self.lines[end.line][end.column :]]
        self.cursor = line + 1

    def node(self, path: Path) -> yaml.Node | None:
        """The node of the value at `path`, or None."""
        node: yaml.Node | None = self.root
        for step in path:
            if isinstance(node, yaml.MappingNode):
                node = next((value for key, value in node.value if key.value == step), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
            else:
                return None
        return node

    def entry(self, path: Path) -> Entry | None:
        """The key at `path` with its value, or None."""
        parent = self.node(path[:-1])
        if not isinstance(parent, yaml.MappingNode):
            return None
        return next((Entry(key, value, parent) for key, value in parent.value if key.value == path[-1]), None)

    def written(self, path: Path) -> Any:
        """The value at `path`, with its quotes and its comment if it is on the line of its key."""
        entry = self.entry(path)
        if entry is not None and entry.first == entry.last and self.is_block(path):
            return AsWritten(self.lines[entry.first][entry.key.end_mark.column + 1 :].strip())
        return value_at(Reader(Source("", "")).value(self.root, ()) if self.root else None, path)

    def is_block(self, path: Path) -> bool:
        """Whether everything around `path` is in block style: one key a line."""
        return not any(getattr(self.node(path[:n]), "flow_style", False) for n in range(len(path)))


def last_line(node: yaml.Node, line: int) -> int:
    """The last line of a value whose key is in `line`; what an alias stands for is elsewhere."""
    if node.start_mark.line < line or (isinstance(node, yaml.CollectionNode) and not node.value):
        return max(line, node.end_mark.line if getattr(node, "flow_style", False) else line)
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        last = node.value[-1]
        key, value = last if isinstance(last, tuple) else (last, last)
        return last_line(value, key.start_mark.line)
    ends_before = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">") and node.end_mark.column == 0
    return int(node.end_mark.line) - ends_before


def place_of(node: yaml.Node) -> tuple[int, int]:
    """Line and column, from 0, where a node begins."""
    return node.start_mark.line, node.start_mark.column


def plain_value(text: str) -> Any:
    """The value that `text` spells."""
    node = yaml.compose(text, Loader=Loader)
    return None if node is None else Reader(Source("", "")).value(node, ())


def flow(value: Any) -> str:
    """A value as YAML on one line; nothing for None."""
    if value is None or isinstance(value, AsWritten):
        return value or ""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def block(key: str, value: Any) -> list[str]:
    """Lines of `key: value`; a mapping takes a line a key."""
    if isinstance(value, dict) and value:
        return [f"{key}:", *(f"  {line}" for name, item in value.items() for line in block(str(name), item))]
    return [f"{key}: {flow(value)}".rstrip()]
