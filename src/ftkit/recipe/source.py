"""YAML text -> plain values, with the place of every key and value.

In: the text of a file, as people paste it. Out: a `Source`: values (None where nothing is given) and marks by path,
plus the problems found on the way. Recipes are copied from web pages, so non-breaking spaces, tabs, a byte-order mark,
carriage returns and a code fence around the whole are read as what they were meant to be (`pasted.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from ftkit.recipe.pasted import clean, odd_space, without_tabs
from ftkit.recipe.problems import COMMAND_LINE, NOWHERE, Mark, Problem, Severity
from ftkit.recipe.scalars import read_scalar

Path = tuple[str | int, ...]
MAX_VALUES = 100_000  # a few aliases of aliases unfold to billions
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Source:
    """A recipe as read.

    Args:
        file: the name used in messages.
        text: exactly as read, for saving beside the run.
        data: nested dicts and lists.
        keys, values: the place of the key and of the value at each path.
        renamed: today's path -> the path it has in the file, for keys that were migrated.
        edits: what migration changed, in order (`recipe/edits.py`).
        raw: the text of each plain scalar that was read as a number, for keys that want text (`007`).
    """

    file: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    raw: dict[Path, str] = field(default_factory=dict)
    overridden: set[Path] = field(default_factory=set)
    renamed: dict[Path, Path] = field(default_factory=dict)
    edits: list[Any] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def problem(
        self, code: str, path: Path, message: str, help: str = "", *, severity: Any = "error", at_key: bool = False
    ) -> Problem:
        """Make a problem about `path`, placed at its value, else at its key, else at its nearest parent."""
        if any(path[:depth] in self.overridden for depth in range(1, len(path) + 1)):
            return Problem(severity, COMMAND_LINE, 0, 0, dotted(path), code, message, help)
        key, value = self.keys.get(path), self.values.get(path)
        block = key is not None and value is not None and value.line != key.line  # a value on lines of its own
        mark = (key if at_key or block else value) or key or self.nearest(path)
        return Problem(severity, self.file, mark.line, mark.column, dotted(path), code, message, help)

    def note(self, code: str, path: Path, message: str, help: str = "", **options: Any) -> None:
        """Add the problem that `problem` makes."""
        self.problems.append(self.problem(code, path, message, help, **options))

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
        node = compose(source)
    except UnicodeDecodeError as bad:
        line = bad.object[: bad.start].count(b"\n") + 1
        message = f"the file is not UTF-8, got byte 0x{bad.object[bad.start]:02x}"
        source.problems.append(Problem("error", file, line, 1, "", "encoding", message, "save the file as UTF-8"))
    except yaml.YAMLError as bad:
        source.problems.append(syntax_problem(file, source.text, bad))
    except (RecursionError, UnicodeError, ValueError) as bad:  # thousands of brackets; half a surrogate pair; `!!int x`
        source.problems.append(Problem("error", file, 0, 0, "", "syntax", f"this is not YAML: {bad}"))
    else:
        read_node(source, node)
    return source


def compose(source: Source) -> yaml.Node | None:
    """The tree of YAML nodes of `source.text`; None for a text without content."""
    text = clean(source.text)
    if not source.text.isascii():
        note_odd_spaces(source)
    try:
        return yaml.compose(text, Loader=Loader)
    except yaml.YAMLError:
        if "\t" not in text:
            raise
        return yaml.compose(without_tabs(text), Loader=Loader)


def read_node(source: Source, node: yaml.Node | None) -> None:
    """Fill `source.data` from the file's top node, which must be a mapping."""
    if node is None:
        help = "write a recipe; docs/recipe.md lists the keys"
        source.problems.append(Problem("error", source.file, 0, 0, "", "empty", "the file holds nothing", help))
    elif not isinstance(node, yaml.MappingNode):
        mark, message = mark_of(node), "a recipe is a mapping of keys to values"
        help = "write lines of `key: value`"
        source.problems.append(
            Problem("error", source.file, mark.line, mark.column, "", "not-a-mapping", message, help)
        )
    else:
        try:
            source.data = Reader(source).value(node, ())
        except (RecursionError, TooLargeError):
            message = "the recipe is nested too deeply, or its aliases unfold to more than 100000 values"
            source.problems.append(Problem("error", source.file, 1, 1, "", "too-large", message))


def note_odd_spaces(source: Source) -> None:
    """Say that spaces of a web page were read as plain ones."""
    first = odd_space(source.text)
    if first is None:
        return
    space, line, column = first
    message = f"a space that is not a plain one (U+{ord(space):04X}) is read as a plain one"
    help = "it comes from a web page; type the space again"
    source.problems.append(Problem("note", source.file, line, column, "", "odd-space", message, help))


class TooLargeError(Exception):
    """More values than any recipe has."""


class Reader:
    """Turns YAML nodes into values and notes their places."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.open: set[int] = set()  # ids of the nodes being read, to refuse an alias to its own parent

    def value(self, node: yaml.Node, path: Path) -> Any:
        """The value of `node`, whose path is `path`."""
        if len(self.source.values) > MAX_VALUES:
            raise TooLargeError
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
            assert isinstance(node, yaml.ScalarNode)
            return self.scalar(node, path)
        finally:
            self.open.discard(id(node))

    def scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        """The value of a scalar: text where quoted."""
        if node.style:
            return node.value
        value = read_scalar(node.value)
        if isinstance(value, int | float):
            self.source.raw[path] = node.value
        return value

    def pairs(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        """Keys and values of a mapping; merges (`<<`) come first so that own keys win, repeated keys are reported."""
        first: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        plain = [pair for pair in node.value if not is_merge(pair[0])]
        for _, value_node in (pair for pair in node.value if is_merge(pair[0])):
            yield from self.merged(value_node, path)
        for key_node, value_node in plain:
            if not isinstance(key_node, yaml.ScalarNode):
                self.report(key_node, path, "bad-key", "a key must be a word", "quote it if it is meant as text")
                continue
            key = key_node.value
            if key in first:
                self.repeated(key, first[key], (key_node, value_node), path)
                continue
            first[key] = (key_node, value_node)
            inner = (*path, key)
            self.source.keys[inner] = mark_of(key_node)
            yield key, self.value(value_node, inner)

    def merged(self, node: yaml.Node, path: Path) -> Iterator[tuple[str, Any]]:
        """The pairs that `<<: *alias` brings; of a list the first comes last, so that it wins."""
        for part in reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(part, yaml.MappingNode) and id(part) not in self.open:
                self.open.add(id(part))
                yield from self.pairs(part, path)
                self.open.discard(id(part))
            else:
                self.report(node, path, "bad-merge", "`<<` takes a mapping", "write `<<: *name_of_an_anchor`")

    def repeated(
        self, key: str, first: tuple[yaml.Node, yaml.Node], again: tuple[yaml.Node, yaml.Node], path: Path
    ) -> None:
        """Report a key that stands twice, naming both lines: an error unless both say the same."""
        equal = same(first[1], again[1])
        message = f"the key `{key}` stands twice, first in line {first[0].start_mark.line + 1}"
        help = "remove one" if equal else "the two differ; keep one of them (other readers silently take the last)"
        severity: Severity = "warning" if equal else "error"
        self.report(again[0], (*path, key), "duplicate-key", message, help, severity)

    def report(
        self, node: yaml.Node, path: Path, code: str, message: str, help: str, severity: Severity = "error"
    ) -> None:
        """Note a problem at `node`."""
        mark = mark_of(node)
        found = Problem(severity, self.source.file, mark.line, mark.column, dotted(path), code, message, help)
        self.source.problems.append(found)


def is_merge(node: yaml.Node) -> bool:
    """Whether a key is the merge sign."""
    return isinstance(node, yaml.ScalarNode) and node.value == "<<" and not node.style


def same(a: yaml.Node, b: yaml.Node) -> bool:
    """Whether two nodes hold the same values."""
    return bool(Reader(Source("", "")).value(a, ()) == Reader(Source("", "")).value(b, ()))


def mark_of(node: yaml.Node) -> Mark:
    """The 1-based place where a node begins."""
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def syntax_problem(file: str, text: str, bad: yaml.YAMLError) -> Problem:
    """A YAML syntax error in our words, with the usual cause where it can be seen."""
    mark = getattr(bad, "problem_mark", None) or getattr(bad, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    lines = clean(text).split("\n")
    content = lines[line - 1] if 0 < line <= len(lines) else ""
    what = str(getattr(bad, "problem", None) or bad).split("\n")[0]
    help = "look at the indentation and the quotes of this line and the one above"
    if "\t" in content[: len(content) - len(content.lstrip())]:
        help = "this line is indented with a tab; YAML takes spaces only"
    elif "`" in content:
        help = "backticks come from a web page; remove them, or quote the value"
    elif "mapping values are not allowed" in what:
        help = "quote the value, or put the second `key: value` on its own line"
    return Problem("error", file, line, column, "", "syntax", f"this is not YAML: {what}", help)
