"""What a rule sees and what it says.

A rule is a function of at most ten lines. Its name with dashes is the problem's code, its docstring what
`ftkit check --explain CODE` prints, and `tests/recipe/problems/NAME.{yaml,txt}` its example.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ftkit.recipe.keys import HOLDERS
from ftkit.recipe.section.base import Section


class Finding(NamedTuple):
    """What a rule says: about which key (dots go deeper), how grave, what, and how to mend it."""

    severity: str
    key: str
    message: str
    help: str

    @property
    def path(self) -> tuple[str | int, ...]:
        """`datasets.0.path` -> `("datasets", 0, "path")`."""
        return tuple(int(step) if step.isdigit() else step for step in self.key.split("."))


class Unbuilt(Exception):  # noqa: N818 - a signal between View and check_rules, not an error
    """A rule asked for a section that has errors of its own; the rule is left out."""


class View:
    """A recipe under construction, by YAML key: `view.learning_rate`."""

    def __init__(self, sections: Mapping[str, Section], refused: Container[str] = ()) -> None:
        self._sections, self._refused = sections, refused
        self._files: dict[str, Any] = {}

    def __getattr__(self, key: str) -> Any:
        """The value of `key`, its default if nobody gave one; KeyError for a key that does not exist."""
        section, name = HOLDERS[key]
        if section not in self._sections:
            raise Unbuilt(section)
        return getattr(self._sections[section], name)

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def gives(self, key: str) -> bool:
        """Whether the file or the command line gives `key` a value, its default included."""
        section, name = HOLDERS[key]
        return section in self._sections and name in self._sections[section].model_fields_set

    def refuses(self, key: str) -> bool:
        """Whether `key` is in the recipe, and was refused already."""
        return key in self._refused

    def model_file(self, name: str, *, folder: str | None = None) -> Mapping[str, Any]:
        """A JSON file of the base model, or of `folder`, where that is on this disk; empty otherwise."""
        place = Path(folder or self.base_model).expanduser() / name
        if name not in self._files:
            try:
                self._files[name] = json.loads(place.read_text(encoding="utf8"))
            except (OSError, ValueError):
                self._files[name] = {}
        return self._files[name] if isinstance(self._files[name], dict) else {}


Found = Iterator[Finding]
Rule = Callable[[View], Found]


def code_of(rule: Rule) -> str:
    """`bf16_and_fp16` -> `bf16-and-fp16`."""
    return rule.__name__.replace("_", "-")


def error(key: str, message: str, help: str) -> Finding:
    """A recipe that cannot run, or would not do what it says."""
    return Finding("error", key, message, help)


def warning(key: str, message: str, help: str) -> Finding:
    """A key without effect, or one that is probably a mistake."""
    return Finding("warning", key, message, help)


def note(key: str, message: str, help: str) -> Finding:
    """Something good to know."""
    return Finding("note", key, message, help)
