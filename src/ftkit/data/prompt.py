"""Whether the text before a row's last answer is what inference will write there.

Three outcomes, and the rule that tells them apart:

- equal: the model is asked just as it was taught;
- another by design: the two differ in nothing but the block of reasoning that the generation prompt opens (`<think>`)
  or leaves empty, which the row's answer has otherwise. Published templates of reasoning models do so on purpose. The
  report names what differs, and the template's own setting under which it does not;
- broken: anything else. The model would be taught behind a text that inference never writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftkit.data.chat.environment import RefusedError
from ftkit.data.chat.renderer import Rendered, Renderer
from ftkit.data.proof import OTHER_PROMPT, Broken
from ftkit.data.values import Conversation

JOINED = (
    "the tokenizer joins the end of the prompt with what follows it, so the prompt alone, as inference gives it, has "
    "other tokens than in training; let answers begin without white space, or choose a chat_template that fits the "
    "tokenizer"
)
SHOWN = 30  # characters of two prompts that differ
# A block of reasoning at the end of a text, open or empty.
REASONING = re.compile(
    r"(?:<think>\s*(?:</think>)?|<\|channel>thought\s*(?:<channel\|>)?|\[THINK\]\s*(?:\[/THINK\])?"
    r"|<\|START_THINKING\|>\s*(?:<\|END_THINKING\|>)?)\s*$"
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of holding a row's text against the prompt.

    Args:
        compared: there was something to compare.
        note: how the two differ by the template's design, and what to do about it; empty if they do not.
        end: where the prompt ends in the text, if they are equal.
    """

    compared: bool = False
    broken: Broken | None = None
    note: str = ""
    end: int = 0


def compare_prompt(renderer: Renderer, conversation: Conversation, rendered: Rendered) -> Comparison:
    """Hold the text before the last answer against what inference renders there.

    Nothing is compared where nobody would ask the model: the row's last turn is no answer to a turn of another role,
    or the template refuses what comes before it.
    """
    messages, turns = conversation.messages, rendered.turns
    if len(messages) < 2 or not turns or turns[-1].message is not messages[-1]:
        return Comparison()
    if messages[-1].role != "assistant" or messages[-2].role == "assistant":
        return Comparison()
    prompt = _prompt(renderer, conversation, {})
    if prompt is None:
        return Comparison()
    taught = rendered.text[: turns[-1].start]
    if taught == prompt:
        return Comparison(compared=True, end=len(prompt))
    note = _by_setting(renderer, conversation, taught, rendered.text) or _by_reasoning(taught, prompt)
    if note:
        return Comparison(compared=True, note=note)
    detail = f", got ...{taught[-SHOWN:]!r} where inference has ...{prompt[-SHOWN:]!r}"
    return Comparison(compared=True, broken=Broken(OTHER_PROMPT, detail, _mend(conversation, taught, prompt)))


def _prompt(renderer: Renderer, conversation: Conversation, settings: Mapping[str, Any]) -> str | None:
    try:
        return renderer.prompt(conversation, len(conversation.messages) - 1, settings)
    except RefusedError:
        return None


def _by_setting(renderer: Renderer, conversation: Conversation, taught: str, text: str) -> str:
    """The template's own setting under which it would ask for just this answer; empty if there is none."""
    for name in renderer.template.settings:
        for value in (False, True):
            prompt = _prompt(renderer, conversation, {name: value})
            if prompt is not None and prompt.startswith(taught) and text.startswith(prompt):
                return (
                    f"the chat template asks for answers as these with {name}={value}, which is not its default: ask "
                    f"the model with that, or set chat_template_kwargs: {{{name}: {str(value).lower()}}}"
                )
    return ""


def _by_reasoning(taught: str, prompt: str) -> str:
    """How the two differ in a block of reasoning at their end; empty if they differ in more."""
    ours, theirs = REASONING.search(taught), REASONING.search(prompt)
    bare = [text[: found.start()] if found else text for text, found in ((taught, ours), (prompt, theirs))]
    if not (ours or theirs) or bare[0].rstrip() != bare[1].rstrip():
        return ""
    got, wanted = (repr(found.group()) if found else "nothing" for found in (ours, theirs))
    return (
        f"the chat template's generation prompt ends with {wanted} where these rows have {got}: the model is asked to "
        "go on behind that; give rows whose answers begin so, or change the prompt's end (chat_template_jinja)"
    )


def _mend(conversation: Conversation, taught: str, prompt: str) -> str:
    """What to do about two texts that differ, where that can be told."""
    if "".join(taught.split()) == "".join(prompt.split()):
        return (
            "the chat template writes white space of its own, and not the same in both: open its tags by {%- and {{-, "
            "or take its line breaks and indentation out"
        )
    for number, message in enumerate(conversation.messages[:-1], start=1):
        content = message.content.strip()
        if content and content in prompt and content not in taught:
            return (
                f"the chat template leaves out turn {number} ({message.role}) once an answer follows: choose another "
                "chat_template"
            )
    return ""
