"""What a chat template does around a message, learned once from a small conversation of its own rendering.

Three facts are needed to say which characters the model must produce, and no template states them:
- what opens its turn (the generation prompt),
- what ends a turn (`<|im_end|>`, `</s>` ...), as opposed to what opens the next one,
- whether white space around a content survives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ftkit.data.chat.environment import BLOCK_END, BLOCK_START, CompiledTemplate, RefusedError

# Ends of a turn in published templates that need not be a tokenizer's EOS.
KNOWN_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<end_of_turn>", "<|end_of_turn|>", "<turn|>",
    "<|end|>", "<|return|>", "<|call|>", "</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "[|endofturn|]", "<|tool_response>",
)  # fmt: skip
REASONING = "<think>"
BEFORE, AFTER = "\n \n ", " \n \n"  # white space around the probe's contents
WORDS = ("qwert", "asdfg", "zxcvb", "poiuy")
ROLES = ("user", "assistant", "user", "assistant")


@dataclass(frozen=True)
class TemplateHabits:
    """What `probe` found out.

    Args:
        opening: the generation prompt, empty if the template has none.
        header: what stands before an earlier turn of the model, where that is not the generation prompt.
        ends: literals that end a turn when they follow a content.
        tail: what follows the last turn's content, for templates whose end is no token.
        keeps_before, keeps_after: roles whose contents keep their white space at the start, at the end.
        wants_parts: the template reads contents as lists of parts, and loses plain text.
        ends_earlier, ends_last: whether it writes an end behind an earlier turn of the model, behind the last turn.
    """

    opening: str = ""
    header: str = ""
    ends: tuple[str, ...] = KNOWN_ENDS
    tail: str = ""
    keeps_before: frozenset[str] = frozenset()
    keeps_after: frozenset[str] = frozenset()
    wants_parts: bool = False
    ends_earlier: bool = True
    ends_last: bool = True

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """What a turn of the model may begin with, the generation prompt first."""
        bare = self.header.partition(REASONING)[0]  # before reasoning that is not always the same
        return tuple(dict.fromkeys(literal for literal in (self.opening, self.header, bare) if literal))

    @cached_property
    def lead(self) -> str:
        """White space that the model writes before its content, whatever turn its own follows."""
        more = self.header.removeprefix(self.opening)
        return more if self.opening and self.header != more and more.isspace() else ""

    @cached_property
    def _end(self) -> re.Pattern[str]:
        return re.compile(rf"\s*(?:{'|'.join(map(re.escape, self.ends))})")

    def end_of_turn(self, text: str, start: int, stop: int, *, is_last: bool, search: bool) -> int:
        """Where the turn whose content ends at `start` ends: behind its end-of-turn token, or `start` if it has none.

        Args:
            stop: start of the next content; the end must come before.
            search: look beyond other text (a rendered tool call) for the first end.
        """
        found_here = self._end.match(text, start, stop)
        if found_here:
            return found_here.end()
        if self.tail and text.startswith(self.tail, start):
            return start + len(self.tail)
        if search:
            found = [at + len(end) for end in self.ends if (at := text.find(end, start, stop)) >= 0]
            return min(found, default=start)
        return start + len(text[start:].rstrip()) if is_last else start


def probe(template: CompiledTemplate, *, added_tokens: Iterable[str], ends: Iterable[str]) -> TemplateHabits:
    """Render two exchanges and read the template's habits off the text.

    Args:
        added_tokens: the tokenizer's special and added tokens, as text.
        ends: what ends a turn beside the published ends: the tokenizer's EOS, the recipe's `eot_tokens`.
    """
    ends = _longest_first([*ends, *KNOWN_ENDS])
    for wants_parts in (False, True):
        text = _render(template, 4, wants_parts=wants_parts)
        at = [text.find(word) for word in WORDS] if text else [-1]
        if min(at) >= 0 and at == sorted(at):
            return _read_off(template, text or "", at, ends, tuple(added_tokens), wants_parts=wants_parts)
    habits = TemplateHabits(ends=ends)
    return replace(habits, opening=_opening(template, habits, frozenset()))


def as_parts(content: str) -> list[dict[str, str]]:
    """A content for templates that want parts."""
    return [{"type": "text", "text": content}]


def strip_blocks(text: str) -> str:
    """Without the marks of generation blocks."""
    return text.replace(BLOCK_START, "").replace(BLOCK_END, "")


def _read_off(
    template: CompiledTemplate,
    text: str,
    at: Sequence[int],
    ends: tuple[str, ...],
    added_tokens: tuple[str, ...],
    *,
    wants_parts: bool,
) -> TemplateHabits:
    """The habits from the text of the probe, whose contents stand at `at`."""
    behind = [start + len(word) for start, word in zip(at, WORDS, strict=True)]
    # White space was kept if all of it is there; a template's own is never this mixture.
    before = frozenset(role for start, role in zip(at, ROLES, strict=True) if text.endswith(BEFORE, 0, start))
    after = frozenset(role for end, role in zip(behind, ROLES, strict=True) if text.startswith(AFTER, end))
    closing = text[behind[3] :].removeprefix(AFTER if "assistant" in after else "").rstrip()
    known = [literal for literal in ends if literal in closing]
    first = _alternatives(added_tokens).match(closing.lstrip())
    if known:  # some templates go on to open the next turn
        closing = closing[: max(closing.index(literal) + len(literal) for literal in known)]
    elif first:
        ends = _longest_first([*ends, first.group()])
    habits = TemplateHabits("", "", ends, closing, before, after, wants_parts)
    start = behind[0] + (len(AFTER) if "user" in after else 0)
    header = text[habits.end_of_turn(text, start, at[1], is_last=False, search=False) : at[1]]
    header = header.removesuffix(BEFORE if "assistant" in before else "").lstrip()
    habits = replace(habits, header=header, opening=_opening(template, habits, after))
    lead = len(AFTER) if "assistant" in after else 0
    earlier, last = behind[1] + lead, behind[3] + lead
    return replace(
        habits,
        ends_earlier=habits.end_of_turn(text, earlier, at[2], is_last=False, search=False) > earlier,
        ends_last=habits.end_of_turn(text, last, len(text), is_last=True, search=False) > last,
    )


def _opening(template: CompiledTemplate, habits: TemplateHabits, after: frozenset[str]) -> str:
    """What the template writes when it is asked to let the model speak."""
    closed = _render(template, 1, wants_parts=habits.wants_parts)
    opened = _render(template, 1, wants_parts=habits.wants_parts, add_generation_prompt=True)
    if closed is None or opened is None:
        return ""
    if opened != closed and opened.startswith(closed):
        return opened[len(closed) :]
    behind = opened.find(WORDS[0]) + len(WORDS[0]) + (len(AFTER) if "user" in after else 0)
    return opened[habits.end_of_turn(opened, behind, len(opened), is_last=False, search=False) :].lstrip()


def _render(
    template: CompiledTemplate, num_turns: int, *, wants_parts: bool, add_generation_prompt: bool = False
) -> str | None:
    """The first turns of the probe; None if the template refuses them."""
    contents = [BEFORE + word + AFTER for word in WORDS[:num_turns]]
    turns = [
        {"role": role, "content": as_parts(content) if wants_parts else content}
        for role, content in zip(ROLES, contents, strict=False)
    ]
    try:
        return strip_blocks(template.render(turns, add_generation_prompt=add_generation_prompt))
    except RefusedError:
        return None


def _alternatives(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, _longest_first(texts))) or "(?!)")


def _longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}, key=lambda text: (-len(text), text)))
