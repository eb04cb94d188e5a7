"""Whether the model learns to stop: what ends a trained turn, in the row and by the template's habit.

A template may write no token behind a turn of the model, and be right by its own lights: some write one only behind the
last turn, some leave it to what opens the next turn, some to whoever trains. The rule:

- a turn that lacks the end which this template writes elsewhere is broken;
- behind a last answer that the template never ends comes the tokenizer's EOS, at which generation stops;
- an earlier turn that the template never ends stays as it is, and the report says so;
- a data set in which no row at all trains an end is refused (`prepare.py`): its model would never stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ftkit.data.chat.probe import TemplateHabits
from ftkit.data.chat.renderer import Rendered, Turn
from ftkit.data.masks import MaskRules
from ftkit.data.values import Conversation

NO_END = (
    "the chat template writes no end of turn behind earlier turns of the model, so only a last answer teaches it to "
    "stop; if what opens the next turn stops it, name that: eot_tokens: [...]"
)
EOS_ADDED = "the chat template writes no end of turn behind the last answer, so the tokenizer's EOS follows it"


@dataclass(frozen=True, slots=True)
class Ends:
    """What was found of a row's ends of turn.

    Args:
        is_missing: a turn lacks an end that the template writes elsewhere, or that EOS cannot stand in for.
        add_eos: the last answer is to be followed by the tokenizer's EOS.
        note: what is otherwise than a reader may think; empty for nothing.
    """

    is_missing: bool = False
    add_eos: bool = False
    note: str = ""


def check_ends(
    rules: MaskRules, conversation: Conversation, rendered: Rendered, habits: TemplateHabits, *, may_add_eos: bool
) -> Ends:
    """Look behind every turn whose end is to be trained.

    Args:
        may_add_eos: the tokenizer has an EOS, and the recipe does not allow the end to be missing.
    """
    messages = conversation.messages
    followers = {id(message): after for message, after in pairwise(messages)}
    is_missing = add_eos = is_silent = False
    for turn in _wanted(rules, rendered):
        after = followers.get(id(turn.message))
        if turn.end > turn.content_end or (after is not None and after.role == turn.message.role):
            continue  # it has an end, or is one turn with the next
        if after is not None:
            is_missing, is_silent = is_missing or habits.ends_earlier, True
        elif habits.ends_last or not may_add_eos or turn.message.role != "assistant":
            is_missing = True
        else:
            add_eos = True
    notes = [text for text, holds in ((NO_END, is_silent and not is_missing), (EOS_ADDED, add_eos)) if holds]
    return Ends(is_missing, add_eos, "; ".join(notes))


def with_eos(rendered: Rendered) -> tuple[Turn, ...]:
    """The turns, the last one reaching to the end of the text, where EOS will stand."""
    *turns, last = rendered.turns
    return (*turns, Turn(last.message, last.start, last.content_end, len(rendered.text)))


def _wanted(rules: MaskRules, rendered: Rendered) -> list[Turn]:
    """The turns whose end the mask asks for."""
    if rules.ends == "none":
        return []
    trained = [turn for turn in rendered.turns if rules.everything or rules.is_trained(turn.message)]
    trained = [turn for turn in trained if turn.message.role == "assistant" or not rules.everything]
    return trained[-1:] if rules.ends == "last" else trained
