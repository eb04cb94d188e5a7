"""YAML text -> plain values, with the place of every key and value.

In: the text of a file, as people paste it. Out: a `Source`: values (None where nothing is given) and marks by path, plus
the problems found on the way. Recipes are copied from web pages, so non-breaking spaces, a byte-order mark, carriage
returns and a code fence around the whole are read as what they were meant to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from ftkit.recipe.problems import COMMAND_LINE, NOWHERE, Mark, Problem
from ftkit.recipe.scalars import read_scalar

Path = tuple[str | int, ...]
# Spaces of other widths that web pages put where a plain one was typed; one character each, so columns stay right.
ODD_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
INVISIBLE = re.compile("[\ufeff\u200b\u2060]")
FENCE = re.compile(r"^\s*(```|~~~)\s*(ya?ml)?\s*$", re.MULTILINE)
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Source:
    """A recipe as read.

    Args:
        file: the name used in messages.
        text: exactly as read, for saving beside the run.
        data: nested dicts and lists.
        keys, values: the place of the key and of the value at each path.
    """

    file: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    overridden: set[Path] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def problem(
        self, code: str, path: Path, message: str, help: str = "", *, severity: Any = "error", at_key: bool = False
    ) -> Problem:
        """Make a problem about `path`, placed at its value, else at its key, else at its nearest parent."""
        if any(path[:depth] in self.overridden for depth in range(1, len(path) + 1)):
            return Problem(severity, COMMAND_LINE, 0, 0, dotted(path), code, message, help)
        mark = (self.keys if at_key else self.values).get(path) or self.keys.get(path) or self.nearest(path)
        return Problem(severity, self.file, mark.line, mark.column, dotted(path), code, message, help)

    def nearest(self, path: Path) -> Mark:
        """The place of the closest parent of `path` that has one."""
        parents = (self.keys.get(path[:depth]) or self.values.get(path[:depth]) for depth in range(len(path), 0, -1))
        return next((mark for mark in parents if mark), NOWHERE)


def dotted(path: Path) -> str:
    """`("datasets", 0, "path")` -> `datasets.0.path`."""
    return ".".join(map(str, path))


def read_source(file: str, content: bytes | str) -> Source:
    """Read a recipe's bytes; what is wrong with them stands in the source's `problems`."""
    source = Source(file, "")
    try:
        source.text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    except UnicodeDecodeError as bad:
        line = content[: bad.start].count(b"\n") + 1 if isinstance(content, bytes) else 0
        message = f"the file is not UTF-8, got byte 0x{bad.object[bad.start]:02x}"
        source.problems.append(Problem("error", file, line, 1, "", "encoding", message, "save the file as UTF-8"))
        return source
    try:
        node = yaml.compose(clean(source.text), Loader=Loader)
    except yaml.YAMLError as bad:
        source.problems.append(syntax_problem(file, source.text, bad))
        return source
    if node is None:
        source.problems.append(
            Problem(
                "error",
                file,
                0,
                0,
                "",
                "empty",
                "the file holds nothing",
                "write a recipe; docs/recipe.md lists the keys",
            )
        )
    elif not isinstance(node, yaml.MappingNode):
        mark = Mark(node.start_mark.line + 1, node.start_mark.column + 1)
        message = "a recipe is a mapping of keys to values"
        source.problems.append(
            Problem("error", file, mark.line, mark.column, "", "not-a-mapping", message, "write lines of `key: value`")
        )
    else:
        source.data = Reader(source).value(node, ())
    return source


def clean(text: str) -> str:
    """Put plain characters where pasting left odd ones, without moving any line or column."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = ODD_SPACES.sub(" ", text)
    text = INVISIBLE.sub("", text)
    return FENCE.sub("", text)


class Reader:
    """Turns YAML nodes into values and notes their places."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.open: set[int] = set()  # ids of the nodes being read, to refuse an alias to its own parent

    def value(self, node: yaml.Node, path: Path) -> Any:
        """The value of `node`, whose path is `path`."""
        if id(node) in self.open:
            self.source.problems.append(self.source.problem("alias-loop", path, "the value contains itself"))
            return None
        self.source.values[path] = mark_of(node)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return dict(self.pairs(node, path))
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            return read_scalar(node.value) if not node.style else node.value
        finally:
            self.open.discard(id(node))

    def pairs(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        """Keys and values of a mapping; merges (`<<`) come first so that own keys win, repeated keys are refused."""
        first: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if key_node.value == "<<" and not key_node.style:
                yield from self.merged(value_node, path)
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key == "<<" and not key_node.style:
                continue
            if key is None:
                self.refuse(key_node, path, "bad-key", "a key must be a word", "quote it if it is meant as text")
            elif key in first:
                self.repeated(key, first[key], key_node, path)
            else:
                first[key] = key_node
                self.source.keys[*path, key] = mark_of(key_node)
                yield key, self.value(value_node, (*path, key))

    def merged(self, node: yaml.Node, path: Path) -> Iterator[tuple[str, Any]]:
        """The pairs that `<<: *alias` brings."""
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(part, yaml.MappingNode):
                yield from self.pairs(part, path)

    def repeated(self, key: str, first: yaml.Node, again: yaml.Node, path: Path) -> None:
        """Refuse a key that stands twice, naming both lines."""
        message = f"the key `{key}` stands twice, first in line {first.start_mark.line + 1}"
        self.refuse(
            again, (*path, key), "duplicate-key", message, "keep one of them; other readers silently take the last"
        )

    def refuse(self, node: yaml.Node, path: Path, code: str, message: str, help: str) -> None:
        mark = mark_of(node)
        self.source.problems.append(
            Problem("error", self.source.file, mark.line, mark.column, dotted(path), code, message, help)
        )


def mark_of(node: yaml.Node) -> Mark:
    """The 1-based place where a node begins."""
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def syntax_problem(file: str, text: str, bad: yaml.YAMLError) -> Problem:
    """A YAML syntax error in our words, with the usual cause where it can be seen."""
    mark = getattr(bad, "problem_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    lines = clean(text).split("\n")
    content = lines[line - 1] if 0 < line <= len(lines) else ""
    what = str(getattr(bad, "problem", None) or bad).split("\n")[0]
    help = "look at the indentation and the quotes of this line and the one above"
    if "\t" in content[: len(content) - len(content.lstrip())]:
        help = "this line is indented with a tab; YAML takes spaces only"
    elif "`" in content:
        help = "a value that starts with a backtick must be quoted"
    elif "mapping values are not allowed" in what:
        help = "quote the value, or put the second `key: value` on its own line"
    return Problem("error", file, line, column, "", "syntax", f"this is not YAML: {what}", help)
