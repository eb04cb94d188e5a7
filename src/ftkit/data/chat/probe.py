"""What a chat template does around a message, learned once from a small conversation of its own rendering.

Three facts are needed to say which characters the model must produce, and no template states them:
- what opens its turn (the generation prompt),
- what ends a turn (`<|im_end|>`, `</s>` ...), as opposed to what opens the next one,
- whether white space around a content survives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ftkit.data.chat.environment import BLOCK_END, BLOCK_START, CompiledTemplate, RefusedError

# Ends of a turn in published templates that need not be a tokenizer's EOS.
KNOWN_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<end_of_turn>", "<|end_of_turn|>", "<turn|>", "<|end|>",
    "<|return|>", "<|call|>", "</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>", "[|endofturn|]",
)  # fmt: skip
BEFORE, AFTER = "\n ", " \n"  # white space around the probe's contents


@dataclass(frozen=True)
class TemplateHabits:
    """What `probe` found out.

    Args:
        opening: the generation prompt, empty if the template has none.
        ends: literals that end a turn when they follow a content.
        tail: what follows the last turn's content, for templates whose end is no token.
        keeps_before, keeps_after: roles whose contents keep their white space at the start, at the end.
    """

    opening: str = ""
    ends: tuple[str, ...] = KNOWN_ENDS
    tail: str = ""
    keeps_before: frozenset[str] = frozenset()
    keeps_after: frozenset[str] = frozenset()

    def end_of_turn(self, text: str, start: int, stop: int, *, is_last: bool, search: bool) -> int:
        """Where the turn whose content ends at `start` ends: behind its end-of-turn token, or `start` if it has none.

        Args:
            stop: start of the next content; the end must come before.
            search: look beyond other text (a rendered tool call) for the first end.
        """
        position = start
        while position < stop and text[position].isspace():
            position += 1
        for literal in self.ends:
            if text.startswith(literal, position) and position + len(literal) <= stop:
                return position + len(literal)
        if self.tail and text.startswith(self.tail, start):
            return start + len(self.tail)
        if search:
            found = [at + len(end) for end in self.ends if (at := text.find(end, start, stop)) >= 0]
            return min(found, default=start)
        return start + len(text[start:].rstrip()) if is_last else start


def probe(template: CompiledTemplate, *, added_tokens: Iterable[str], eos_token: str | None) -> TemplateHabits:
    """Render two exchanges and read the template's habits off the text.

    Args:
        added_tokens: the tokenizer's special and added tokens, as text.
    """
    contents = ["qwert", "asdfg", "zxcvb", "poiuy"]
    roles = ["user", "assistant", "user", "assistant"]
    turns = [{"role": r, "content": BEFORE + c + AFTER} for r, c in zip(roles, contents, strict=True)]
    ends = dict.fromkeys([*([eos_token] if eos_token else []), *KNOWN_ENDS])
    try:
        text = strip_blocks(template.render(turns))
    except RefusedError:
        return TemplateHabits(opening=_opening(template), ends=_longest_first(ends))
    at = [text.find(content) for content in contents]
    if min(at) < 0 or at != sorted(at):
        return TemplateHabits(opening=_opening(template), ends=_longest_first(ends))
    behind = [a + len(c) for a, c in zip(at, contents, strict=True)]
    # A content's white space was kept if it is there and is not the template's own: ask for both characters.
    before = frozenset(role for a, role in zip(at, roles, strict=True) if text.endswith(BEFORE, 0, a))
    after = frozenset(role for b, role in zip(behind, roles, strict=True) if text.startswith(AFTER, b))
    tail = text[behind[-1] :].removeprefix(AFTER if "assistant" in after else "").rstrip()
    first = re.match("|".join(map(re.escape, _longest_first(dict.fromkeys(added_tokens)))) or "(?!)", tail.lstrip())
    if first:
        ends[first.group()] = None
    return TemplateHabits(_opening(template), _longest_first(ends), tail, before, after)


def strip_blocks(text: str) -> str:
    """Without the marks of generation blocks."""
    return text.replace(BLOCK_START, "").replace(BLOCK_END, "")


def _opening(template: CompiledTemplate) -> str:
    turns = [{"role": "user", "content": "qwert"}]
    try:
        closed = strip_blocks(template.render(turns))
        opened = strip_blocks(template.render(turns, add_generation_prompt=True))
    except RefusedError:
        return ""
    return opened[len(closed) :] if opened.startswith(closed) else ""


def _longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted((text for text in texts if text), key=len, reverse=True))
