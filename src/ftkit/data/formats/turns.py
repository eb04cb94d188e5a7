"""What sharegpt and OpenAI messages have in common: a column with a list of turns, each a role and a content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftkit.data.formats.fields import as_text, list_field, mapping_field, missing_column
from ftkit.data.formats.thinking import Thinking, thinking_of
from ftkit.data.formats.wishes import NO_WISHES, Wishes, wishes_of
from ftkit.data.values import Conversation, Message, Row
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "ipython": "tool",
}
MEDIA_COLUMNS = ("images", "image", "videos", "audios")
SYSTEM_COLUMNS = ("system", "system_prompt")


@dataclass(frozen=True)
class TurnsFormat:
    """Rows with a column of turns.

    Args:
        column: the list of turns.
        role_key, content_key: keys in each turn.
        roles: the row's role names -> ours.
        tools: the column of the tools a conversation may call.
        wishes: where a turn says whether it is trained.
        thinking: where a turn's reasoning is; None leaves the keys of a turn as they are.
        drop_system: leave system turns and the system column out.
        system_columns: columns of the system text; the first that a row fills is taken.
        system_prompt: system text of rows without one.
    """

    column: str
    role_key: str
    content_key: str
    roles: Mapping[str, str]
    tools: str = "tools"
    wishes: Wishes = NO_WISHES
    thinking: Thinking | None = None
    drop_system: bool = False
    system_columns: tuple[str, ...] = SYSTEM_COLUMNS
    system_prompt: str | None = None

    def __call__(self, row: Row) -> Conversation:
        """The row's turns, in their order, with our role names."""
        if self.column not in row.values:
            raise missing_column(row, self.column)
        for name in MEDIA_COLUMNS:
            if row.values.get(name):
                raise DataError(
                    f"the row has {name}, and only text can be trained on",
                    where=str(row.where),
                    help=f"remove the row, empty its column {name!r}, or set bad_rows: skip",
                )
        turns = [
            single
            for turn in list_field(row.values[self.column], f"column {self.column!r}", row)
            for single in self._unpaired(turn)
        ]
        messages = tuple(self._message(turn, number, row) for number, turn in enumerate(turns, start=1))
        if self.drop_system:
            messages = tuple(message for message in messages if message.role != "system")
            if not messages:
                raise DataError(
                    "the row has nothing but system turns, and drop_system_message leaves them out",
                    where=str(row.where),
                    help="remove the row, or set bad_rows: skip",
                )
        elif messages[0].role != "system":
            messages = (*self._system_column(row), *messages)
        if self.system_prompt and not any(message.role == "system" for message in messages):
            messages = (Message("system", self.system_prompt), *messages)
        return Conversation(messages, row.where, _tools(row, self.tools))

    def _system_column(self, row: Row) -> tuple[Message, ...]:
        for name in self.system_columns:
            value = row.values.get(name)
            if value is not None and value != "" and (isinstance(value, str) or self.system_columns != SYSTEM_COLUMNS):
                return (Message("system", as_text(value, f"column {name!r}", row)),)
        return ()

    def _unpaired(self, turn: Any) -> list[Any]:
        """The turns of a pair such as `{"human": ..., "assistant": ...}`; anything else as it is."""
        if (
            not isinstance(turn, Mapping)
            or self.role_key in turn
            or not turn
            or any(key not in self.roles for key in turn)
        ):
            return [turn]
        return [{self.role_key: role, self.content_key: text} for role, text in turn.items()]

    def _message(self, turn: Any, number: int, row: Row) -> Message:
        turn = mapping_field(turn, f"turn {number}", row)
        for key in (self.role_key, self.content_key):
            if key not in turn and not (key == self.content_key and turn.get("tool_calls")):
                raise _missing_key(turn, number, key, row)
        role = self._role(turn[self.role_key], number, row)
        extra = {}
        has_more = len(turn) > 2 or self.content_key not in turn
        if has_more:
            skipped = {self.role_key, self.content_key, *self.wishes.keys}
            extra = {key: value for key, value in turn.items() if key not in skipped and value is not None}
        content = turn.get(self.content_key)
        if content is None and turn.get("tool_calls"):
            content = ""
        if isinstance(content, list):
            content, more = _from_parts(content, number, row)
            extra |= more
        text = as_text(content, f"turn {number}: {self.content_key!r}", row)
        if has_more:
            return self._with_wishes(Message(role, text, None, extra), turn, f"turn {number}", row)
        if self.thinking:
            text = self.thinking.move(extra, role, text, f"turn {number}", row)
        return Message(role, text, None, extra)

    def _with_wishes(self, message: Message, turn: Mapping[str, Any], what: str, row: Row) -> Message:
        """The message with what its further keys say about training and reasoning."""
        wish = self.wishes.whether(turn, what, row)
        parts = self.wishes.parts(turn, message.content, what, row)
        text, extra = message.content, dict(message.extra)
        if self.thinking:
            text = self.thinking.move(extra, message.role, text, what, row)
            if parts and text != message.content:
                raise DataError(
                    f"{what}: its text has both reasoning to split off and parts to train",
                    where=str(row.where),
                    help="take split_thinking out, or give the reasoning a key of its own (field_thinking)",
                )
        return Message(message.role, text, True if wish is None and parts else wish, extra, parts)

    def _role(self, name: Any, number: int, row: Row) -> str:
        if not isinstance(name, str) or name not in self.roles:
            raise DataError(
                f"turn {number}: unknown role, got {name!r}",
                where=str(row.where),
                help=f"use one of {', '.join(self.roles)}, or map it: roles: {{assistant: [{name}]}}",
            )
        return self.roles[name]


def turns_format(dataset: DatasetSection, *, column: str, role_key: str, content_key: str) -> TurnsFormat:
    """The format with a data set's own names in place of the defaults."""
    names = dataset.message_property_mappings
    return TurnsFormat(
        column=dataset.field_messages or column,
        role_key=dataset.message_field_role or names.get("role") or role_key,
        content_key=dataset.message_field_content or names.get("content") or content_key,
        roles=dict(ROLES) | {alias: role for role, aliases in dataset.roles.items() for alias in _aliases(aliases)},
        tools=dataset.field_tools or "tools",
        wishes=wishes_of(dataset),
        thinking=thinking_of(dataset),
        drop_system=dataset.drop_system_message,
        system_columns=(dataset.field_system,) if dataset.field_system else SYSTEM_COLUMNS,
        system_prompt=dataset.system_prompt,
    )


def _aliases(aliases: Any) -> tuple[str, ...]:
    return (aliases,) if isinstance(aliases, str) else tuple(aliases)


def _from_parts(parts: list[Any], number: int, row: Row) -> tuple[str, dict[str, Any]]:
    """Content given as a list of typed parts -> its text, and what of reasoning and tool calls there is."""
    texts: dict[str, list[str]] = {"text": [], "reasoning": [], "tool_call": []}
    for part in parts:
        part = mapping_field(part, f"turn {number}: a part of the content", row)
        kind = part.get("type", "text")
        if kind not in texts:
            raise DataError(
                f"turn {number}: a part of the content is no text, got type {kind!r}",
                where=str(row.where),
                help="text, reasoning and tool_call parts can be used; remove the row, or set bad_rows: skip",
            )
        texts[kind].append(as_text(part.get("text", part.get("value")), f"turn {number}: a part of the content", row))
    more: dict[str, Any] = {}
    if texts["reasoning"]:
        more["reasoning_content"] = "".join(texts["reasoning"])
    if texts["tool_call"]:
        calls = [_json(call, f"turn {number}: a tool call", row) for call in texts["tool_call"]]
        more["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return "".join(texts["text"]), more


def _tools(row: Row, column: str) -> tuple[Mapping[str, Any], ...]:
    """The column of tools: a list, or JSON text that holds one."""
    tools = row.values.get(column)
    if isinstance(tools, str) and tools.strip():
        tools = _json(tools, f"column {column!r}", row)
    if not tools:
        return ()
    return tuple(mapping_field(tool, "a tool", row) for tool in list_field(tools, f"column {column!r}", row))


def _json(text: str, what: str, row: Row) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as bad:
        raise DataError(
            f"{what} is no JSON: {bad}", where=str(row.where), help="mend it, or set bad_rows: skip"
        ) from None


def _missing_key(turn: Mapping[str, Any], number: int, key: str, row: Row) -> DataError:
    found = ", ".join(turn) or "none"
    return DataError(
        f"turn {number} has no {key!r}, got keys {found}",
        where=str(row.where),
        help="name the keys: message_property_mappings: {role: ..., content: ...}",
    )
