"""A conversation -> its text and, for each message, which characters are its content and its end of turn.

One render gives both. Every content goes into the template between two marks, characters no text uses, and comes out
where the template put it; taking the marks out must give exactly what the template makes of the unmarked
conversation, or the marks did harm (a template that asks whether a content starts with something) and are not used.
What is read off, in order of preference:

1. marks around contents, widened on the model's own turns to all that follows the generation prompt (an empty reasoning
   block that the template writes is the model's to say, too);
2. the template's own `{% generation %}` blocks, when marks did harm;
3. renders of ever longer beginnings, one for each turn of the model: slower, and said in the report.

Time is linear in the turns for 1 and 2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ftkit.data.chat.environment import BLOCK_END, BLOCK_START, CompiledTemplate, RefusedError
from ftkit.data.chat.probe import TemplateHabits, as_parts, strip_blocks
from ftkit.data.values import Conversation, Message
from ftkit.errors import DataError

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
OPEN, START, END = "\ufdd0", "\ufdd1", "\ufdd2"  # OPEN number START content OPEN number END
MARK = re.compile(f"{OPEN}(\\d+)([{START}{END}])")
ANY_MARK = re.compile("[\ufdd0-\ufdd9]")


@dataclass(frozen=True, slots=True)
class Turn:
    """Where one message stands in the text: content in [start, content_end), end of turn in [content_end, end)."""

    message: Message
    start: int
    content_end: int
    end: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of a conversation, its turns in order, and by which of the three ways they were found."""

    text: str
    turns: tuple[Turn, ...]
    method: str


@dataclass(frozen=True)
class Renderer:
    """A compiled template together with its habits."""

    template: CompiledTemplate
    habits: TemplateHabits

    def render(self, conversation: Conversation) -> Rendered:
        """Render one conversation.

        Raises:
            DataError: the template refuses it, or what the model says cannot be found in the text.
        """
        messages = [_as_mapping(message) for message in conversation.messages]
        if not self.template.reads_tool_calls and any(
            message.extra.get("tool_calls") for message in conversation.messages
        ):
            raise DataError(
                "the chat template leaves out the row's tool calls",
                where=str(conversation.where),
                help="choose a chat_template that writes tool_calls, or set bad_rows: skip",
            )
        try:
            blocked = self._render(messages, conversation.tools)
        except RefusedError as refused:
            raise DataError(
                f"the chat template refuses this conversation: {refused}",
                where=str(conversation.where),
                help="mend the row, choose another chat_template, or set bad_rows: skip",
            ) from None
        if self.template.has_blocks and _holds_block_marks(conversation):
            raise DataError(
                f"the row holds a noncharacter that marks generation blocks, one of {BLOCK_START!r} {BLOCK_END!r}",
                where=str(conversation.where),
                help="take it out, or set bad_rows: skip",
            )
        text = self._bare(blocked)
        turns, method = self._by_marks(conversation, messages, text), "marks"
        if turns is None and self.template.has_blocks:
            turns, method = self._by_blocks(conversation, blocked), "generation blocks"
        if turns is None:
            turns, method = self._by_beginnings(conversation, messages, text), "beginnings"
        if turns is None:
            raise DataError(
                "cannot tell what the assistant says from the rest: the chat template rewrites earlier turns",
                where=str(conversation.where),
                help="use a template with {% generation %} blocks, or another chat_template",
            )
        return Rendered(text, turns, method)

    def prompt(self, conversation: Conversation, count: int, settings: Mapping[str, Any] = NO_SETTINGS) -> str:
        """What inference is given after the first `count` messages: their text and the generation prompt.

        Args:
            settings: values given to the template beside the conversation.

        Raises:
            RefusedError: the template refuses such a beginning.
        """
        messages = [_as_mapping(message) for message in conversation.messages[:count]]
        return self._bare(self._render(messages, conversation.tools, settings, add_generation_prompt=True))

    def _bare(self, text: str) -> str:
        """Without the marks of generation blocks; of a template without such blocks these are the row's own."""
        return strip_blocks(text) if self.template.has_blocks else text

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any] = NO_SETTINGS,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        if self.habits.wants_parts:
            messages = [{**message, "content": as_parts(message["content"])} for message in messages]
        return self.template.render(messages, tools, add_generation_prompt=add_generation_prompt, settings=settings)

    def _by_marks(
        self, conversation: Conversation, messages: list[dict[str, Any]], text: str
    ) -> tuple[Turn, ...] | None:
        if ANY_MARK.search(text):
            return None
        marked = [_marked(message, number) for number, message in enumerate(messages)]
        try:
            with_marks = self._bare(self._render(marked, conversation.tools))
        except RefusedError:
            return None
        pieces = MARK.split(with_marks)  # text, number, START or END, text, number, ...
        if "".join(pieces[::3]) != text:
            return None
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        position = 0
        for piece, number, kind in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=False):
            position += len(piece)
            (starts if kind == START else ends).setdefault(int(number), position)
        return self._turns(conversation, text, starts, ends)

    def _turns(
        self, conversation: Conversation, text: str, starts: dict[int, int], ends: dict[int, int]
    ) -> tuple[Turn, ...] | None:
        """Turns from the places of the marks; None if a turn of the model cannot be placed."""
        turns: list[Turn] = []
        stops, previous = self._stops(len(conversation.messages), starts, len(text)), 0
        for number, message in enumerate(conversation.messages):
            stop = stops[number]
            is_last = number == len(conversation.messages) - 1
            start, content_end = starts.get(number), ends.get(number)
            is_padded = message.content[:1].isspace() or message.content[-1:].isspace()
            if is_padded and start is not None and content_end is not None:
                before, after = _around(message.content)
                start -= len(before) if message.role in self.habits.keeps_before else 0
                content_end += len(after) if message.role in self.habits.keeps_after else 0
            if message.role == "assistant":
                start = self._opened(text, previous, stop if content_end is None else content_end, start)
                if start is None:
                    return None
                if content_end is None:
                    content_end = start + (len(message.content) if text.startswith(message.content, start) else 0)
            if start is None or content_end is None:
                continue  # a message of another role that the template leaves out, or an empty one
            search = bool(message.extra.get("tool_calls"))
            end = self.habits.end_of_turn(text, content_end, max(stop, content_end), is_last=is_last, search=search)
            if search and end == content_end:
                return None  # tool calls whose end no token marks
            turns.append(Turn(message, start, content_end, end))
            previous = end
        return tuple(turns)

    def _stops(self, num_messages: int, starts: Mapping[int, int], end: int) -> list[int]:
        """For each message where the next content begins that the text holds."""
        stops = [end] * num_messages
        for number in range(num_messages - 2, -1, -1):
            stops[number] = starts.get(number + 1, stops[number + 1])
        return stops

    def _opened(self, text: str, previous: int, stop: int, start: int | None) -> int | None:
        """Where a turn of the model begins: behind the generation prompt, or else behind the model's header.

        Args:
            previous, stop: it lies between these.
            start: of its content, where that is known; a generation prompt may reach into it (`<think>`).
        """
        for literal in self.habits.openings:
            found = text.find(literal, previous, stop)
            if found >= 0 and (start is None or found <= start):
                return found + len(literal)
        lead = self.habits.lead
        if start is not None and lead and text.endswith(lead, previous, start):
            return start - len(lead)
        return start

    def _by_blocks(self, conversation: Conversation, blocked: str) -> tuple[Turn, ...] | None:
        """Turns from the template's generation blocks, one for each turn of the model, in order."""
        spoken = [message for message in conversation.messages if message.role == "assistant"]
        pieces = re.split(f"[{BLOCK_START}{BLOCK_END}]", blocked)  # outside, inside, outside, ...
        if len(pieces) != 2 * len(spoken) + 1:
            return None
        text = "".join(pieces)
        turns, position = [], 0
        for message, outside, inside in zip(spoken, pieces[::2], pieces[1::2], strict=False):
            start, end = position + len(outside), position + len(outside) + len(inside)
            position = end
            if not inside.strip() and message.extra.get("tool_calls"):
                return None
            turns.append(self._trimmed(message, text, start, end))
        return tuple(turns)

    def _trimmed(self, message: Message, text: str, start: int, end: int) -> Turn:
        """A turn without the rest of the generation prompt at its start, and the white space behind its end."""
        opening = self.habits.opening
        for overlap in range(len(opening)):  # how much of the generation prompt stands before the block
            if text.startswith(opening, start - len(opening) + overlap):
                start = max(start, start + overlap)
                break
        end = start + len(text[start:end].rstrip())
        ends = [literal for literal in self.habits.ends if text.endswith(literal, start, end)]
        return Turn(message, start, end - len(ends[0]) if ends else end, end)

    def _by_beginnings(
        self, conversation: Conversation, messages: list[dict[str, Any]], text: str
    ) -> tuple[Turn, ...] | None:
        turns = []
        for number, message in enumerate(conversation.messages):
            if message.role != "assistant":
                continue
            try:
                before = self._render(messages[:number], conversation.tools, add_generation_prompt=True)
                through = self._render(messages[: number + 1], conversation.tools)
            except RefusedError:
                return None
            before, through = self._bare(before), self._bare(through).rstrip()
            if not (text.startswith(before) and text.startswith(through) and len(before) <= len(through)):
                return None
            turns.append(self._trimmed(message, text, len(before), len(through)))
        return tuple(turns)


def _holds_block_marks(conversation: Conversation) -> bool:
    texts = [message.content for message in conversation.messages]
    more = [conversation.tools, *(message.extra for message in conversation.messages)]
    texts += [json.dumps(value, ensure_ascii=False, default=str) for value in more if value]
    return any(BLOCK_START in text or BLOCK_END in text for text in texts)


def _as_mapping(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content, **message.extra}


def _marked(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The message with marks inside the white space of its content, so that trimming does the same to both."""
    content = message["content"]
    core = content.strip()
    if not core:
        return dict(message)
    before, after = _around(content) if len(core) < len(content) else ("", "")
    return {**message, "content": f"{before}{OPEN}{number}{START}{core}{OPEN}{number}{END}{after}"}


def _around(content: str) -> tuple[str, str]:
    """The white space at the start and at the end."""
    return content[: len(content) - len(content.lstrip())], content[len(content.rstrip()) :]
