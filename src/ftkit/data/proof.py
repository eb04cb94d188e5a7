"""What must hold of a document before anybody trains on it.

Masks are right by construction; what can still be wrong lies between template, tokenizer and row, and none of it shows
in the loss: a document that begins twice, an answer whose end is never learned, a prompt that inference will not write.
Each has a name. A row that breaks one is an error with its line, unless the recipe allows that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ftkit.data.chat.renderer import Turn
from ftkit.data.masks import Span
from ftkit.data.values import Conversation, Where
from ftkit.errors import DataError

DOUBLED_BOS, MISSING_END, OTHER_PROMPT = "doubled_bos", "missing_end", "other_prompt"
LOST_TOOLS = "lost_tools"
INVARIANTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        DOUBLED_BOS: (
            "the begin-of-text token stands twice in a row",
            "take it out of the row or the chat template",
        ),
        MISSING_END: (
            "no end-of-turn token follows a trained turn, so the model would not learn to stop",
            "choose a chat_template that ends turns",
        ),
        OTHER_PROMPT: (
            "what stands before the last answer is not the prompt that inference renders",
            "choose a chat_template whose generation prompt is how its turns begin",
        ),
        LOST_TOOLS: (
            "the row has tools, and the chat template has no place for them",
            "choose a chat_template that writes tools (such as qwen_25 or qwen3), take them out of the row",
        ),
    }
)
PER_SHAPE = 8  # rows of one shape whose prompt is compared; a template treats equal shapes alike
EVERY = 100  # and every so many rows, whatever their shape


@dataclass(frozen=True, slots=True)
class Broken:
    """One invariant that a row breaks.

    Args:
        detail: says more, behind what the invariant says.
        mend: what to do, where that is known better than for the invariant at large.
    """

    name: str
    detail: str = ""
    mend: str = ""

    def error(self, where: Where | str) -> DataError:
        """The invariant's error at a row, or at a data set."""
        what, mend = INVARIANTS[self.name]
        return DataError(what + self.detail, where=str(where), help=f"{self.mend or mend}, or set allow: [{self.name}]")


@dataclass
class PromptSample:
    """Chooses rows whose prompt is compared: the first of every shape, and now and then one of the rest.

    A second render of every row would cost a third of the speed and could only find the same again.
    """

    seen: dict[tuple[object, ...], int] = field(default_factory=dict)
    rows: int = 0

    def wants(self, conversation: Conversation) -> bool:
        """Whether to compare this row; counts it."""
        self.rows += 1
        shape = _shape(conversation)
        self.seen[shape] = self.seen.get(shape, 0) + 1
        return self.seen[shape] <= PER_SHAPE or self.rows % EVERY == 0


def trains_end(turns: Sequence[Turn], spans: Sequence[Span]) -> bool:
    """Whether the end of the last turn that is trained is trained too."""
    for turn in reversed(turns):
        behind_first = max(turn.content_end, turn.start + 1)
        if any(span.start < behind_first and span.end > turn.start for span in spans):
            return any(span.start <= turn.content_end < turn.end <= span.end for span in spans)
    return False


def has_doubled(ids: np.ndarray, bos: int | None) -> bool:
    """Whether `bos` stands twice in a row.

    Args:
        ids: (T,) int32.
        bos: the tokenizer's BOS; None has none.
    """
    if bos is None:
        return False
    is_bos = ids == bos
    return bool((is_bos[1:] & is_bos[:-1]).any())


def _shape(conversation: Conversation) -> tuple[object, ...]:
    """What a template may branch on: how the row begins and ends, empty contents, tools, further keys of turns."""
    turns = [(message.role, not message.content) for message in conversation.messages]
    keys = tuple(sorted({key for message in conversation.messages for key in message.extra}))
    reasons = any("<think>" in message.content for message in conversation.messages)
    return (*turns[:3], None, *turns[-2:], bool(conversation.tools), reasons, keys)
