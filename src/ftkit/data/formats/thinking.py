"""A turn's reasoning: under a key of its own, or written into its text, on its way to the name a template reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftkit.data.formats.fields import as_text
from ftkit.data.values import Row
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection

DEFAULT_KEY = "reasoning_content"  # what the published templates of reasoning models read
# What reasoning stands between when it is part of the text.
MARKERS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
SOLUTION = ("<|begin_of_solution|>", "<|end_of_solution|>")  # around the answer that follows the last of them


@dataclass(frozen=True)
class Thinking:
    """Where a turn's reasoning is, and where it goes.

    Args:
        field: key of a turn that holds it; None if the turns have none.
        template_key: the name under which the chat template reads it.
        split: cut it out of the text of the assistant's turns.
    """

    field: str | None
    template_key: str
    split: bool

    def move(self, extra: dict[str, Any], role: str, content: str, what: str, row: Row) -> str:
        """Put the turn's reasoning under the template's key in `extra`; the text without it."""
        if self.field is not None and (given := extra.pop(self.field, None)) is not None:
            extra[self.template_key] = as_text(given, f"{what}: {self.field!r}", row)
        if not self.split or role != "assistant" or self.template_key in extra:
            return content
        reasoning, rest = split_reasoning(content)
        if reasoning is not None:
            extra[self.template_key] = reasoning
        return rest


def thinking_of(dataset: DatasetSection) -> Thinking | None:
    """What a data set's entry says about reasoning; None if nothing."""
    mapped: Mapping[str, Any] = dataset.message_property_mappings
    key = dataset.template_thinking_key or DEFAULT_KEY
    field = dataset.field_thinking or mapped.get(key)
    if field is None and not dataset.split_thinking:
        return None
    return Thinking(field, key, dataset.split_thinking)


def check_reasoning(dataset: DatasetSection, template: str) -> None:
    """Refuse a chat template that would leave the data set's reasoning out.

    Raises:
        DataError: it does not read the key that reasoning is given under.
    """
    thinking = thinking_of(dataset)
    if thinking and thinking.template_key not in template:
        raise DataError(
            f"the chat template leaves out reasoning: it does not read {thinking.template_key!r}",
            where=dataset.path,
            help="choose a chat_template that does, or name its key with template_thinking_key",
        )


def split_reasoning(content: str) -> tuple[str | None, str]:
    """The reasoning a text begins with, and the rest; (None, the text) if it begins with none."""
    text = content.lstrip()
    for start, end in MARKERS:
        if text.startswith(start) and end in text:
            reasoning, _, rest = text.removeprefix(start).partition(end)
            rest = rest.lstrip()
            if rest.startswith(SOLUTION[0]) and SOLUTION[1] in rest:
                rest = rest.removeprefix(SOLUTION[0]).partition(SOLUTION[1])[0].strip()
            return reasoning.strip(), rest
    return None, content
