"""The built-in chat templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftkit import catalog
from ftkit.data.chat.choose import NamedTemplate, build_renderer
from ftkit.data.chat.renderer import Rendered
from ftkit.data.values import Conversation, Message, Where
from ftkit.errors import DataError

TALKS = {
    "one": [("user", "a?"), ("assistant", "b.")],
    "two": [("user", "a?"), ("assistant", "b."), ("user", "c?"), ("assistant", "d.")],
    "system": [("system", "S."), ("user", "a?"), ("assistant", "b.")],
    "unicode": [("user", "naïve 👩‍🚀 你好"), ("assistant", "é ≠ é\t!\n\nx")],
    "open": [("user", "a?"), ("assistant", "b."), ("user", "c?")],
    "first": [("assistant", "a."), ("user", "b?"), ("assistant", "c.")],
    "row": [("user", "a?"), ("user", "b?"), ("assistant", "c."), ("assistant", "d.")],
    "empty system": [("system", ""), ("user", "a?"), ("assistant", "b.")],
    "empty answer": [("user", "a?"), ("assistant", "")],
}
ENDS = (
    *("<|im_end|>", "</s>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|eot|>"),
    *("<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>"),
)
NO_THOUGHT = "<think>\n\n</think>\n\n"  # Qwen 3 has the model say so
BY_TEXT = {text: name for name in catalog.TEMPLATES for text in [catalog.TEMPLATES[name]]}  # aliases once


def render(text: str, talk: list[tuple[str, str]], tokenizer: Any) -> Rendered:
    renderer = build_renderer(NamedTemplate(text, "test"), tokenizer)
    messages = tuple(Message(role, content) for role, content in talk)
    return renderer.render(Conversation(messages, Where("rows.jsonl", 1)))


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
@pytest.mark.parametrize("name", BY_TEXT.values())
def test_the_model_says_the_answer_and_an_end_of_turn(name: str, talk: list[tuple[str, str]], chatml: Any) -> None:
    made = render(catalog.load(catalog.TEMPLATES[name]), talk, chatml)
    spoken = [turn for turn in made.turns if turn.message.role == "assistant"]
    answers = [content for role, content in talk if role == "assistant"]
    contents = [made.text[turn.start : turn.content_end] for turn in spoken]
    ends = [made.text[turn.content_end : turn.end] for turn in spoken]
    assert [text.replace(NO_THOUGHT, "").strip() for text in contents] == answers
    assert all(text.replace(NO_THOUGHT, "").strip() in ENDS for text in ends)
    assert made.method == "marks"


@pytest.mark.parametrize("name", BY_TEXT.values())
def test_a_generation_prompt_is_what_stands_before_the_answer(name: str, chatml: Any) -> None:
    text = catalog.load(catalog.TEMPLATES[name])
    renderer = build_renderer(NamedTemplate(text, "test"), chatml)
    talk = [{"role": role, "content": content} for role, content in TALKS["two"]]
    prompt = renderer.template.render(talk[:3], add_generation_prompt=True)
    made = render(text, TALKS["two"], chatml)
    assert made.text[: made.turns[-1].start].rstrip() == prompt.rstrip()


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("alpaca", "axolotl__alpaca"),
        ("cohere", "trl__cohere"),
        ("deepseek_v2", "axolotl__deepseek_v2"),
        ("deepseek_v3", "axolotl__deepseek_v3"),
        ("falcon_h1", "axolotl__falcon_h1"),
        ("gemma3n", "axolotl__gemma3n"),
        ("gemma3", "axolotl__gemma3"),
        ("llama3", "axolotl__llama3"),
        ("phi_35", "axolotl__phi_35"),
        ("qwen_25", "chujiezheng__qwen2.5-instruct"),
    ],
)
@pytest.mark.parametrize("talk", ["one", "two", "system", "unicode", "open"])
def test_a_built_in_template_equals_the_published_one(
    name: str, published: str, talk: str, chatml: Any, corpus: Path
) -> None:
    theirs = (corpus / "chat_templates" / f"{published}.jinja").read_text(encoding="utf8")
    ours = catalog.load(catalog.TEMPLATES[name])
    assert render(ours, TALKS[talk], chatml).text == render(theirs, TALKS[talk], chatml).text


TOOLS = (
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "Wörter", "parameters": {"type": "object"}},
    },
    {"type": "function", "function": {"name": "now"}},
)
CALLS = [{"type": "function", "function": {"name": name, "arguments": {"city": "Rome"}}} for name in ("one", "two")]
ASKED, ANSWER = ("user", "weather?"), ("assistant", "It is sunny.")
CALLED = Message("assistant", "", None, {"tool_calls": CALLS})
SAID_AND_CALLED = Message("assistant", "Let me see.", None, {"tool_calls": CALLS[:1]})
THOUGHT = Message("assistant", "It is sunny.", None, {"reasoning_content": "\nhm\n"})
USED = {
    "unused": (Message(*ASKED), Message(*ANSWER)),
    "with system": (Message("system", "S."), Message(*ASKED), Message(*ANSWER)),
    "called": (Message(*ASKED), CALLED, Message("tool", "sunny"), Message("tool", "noon"), Message(*ANSWER)),
    "said and called": (Message(*ASKED), SAID_AND_CALLED, Message("tool", "sunny"), Message(*ANSWER)),
    "called last": (Message(*ASKED), Message(*ANSWER), Message(*ASKED), CALLED),
    "thought": (Message(*ASKED), THOUGHT, Message(*ASKED), CALLED, Message("tool", "sunny"), THOUGHT),
}


@pytest.mark.parametrize(
    ("name", "published", "used"),
    [
        (name, published, used)
        for name, published, known in (
            ("qwen_25", "chujiezheng__qwen2.5-instruct", USED),
            ("qwen_25", "trl__qwen2_5_training", USED),
            ("qwen3", "axolotl__qwen3", USED),
            ("falcon_h1", "axolotl__falcon_h1", ("unused", "with system")),  # it has no place for calls
        )
        for used in known
    ],
)
def test_tools_are_written_as_the_published_template_does(
    name: str, published: str, used: str, chatml: Any, corpus: Path
) -> None:
    conversation = Conversation(USED[used], Where("rows.jsonl", 1), TOOLS)
    texts = [
        catalog.load(catalog.TEMPLATES[name]),
        (corpus / "chat_templates" / f"{published}.jinja").read_text("utf8"),
    ]
    ours, theirs = (build_renderer(NamedTemplate(text, "test"), chatml).render(conversation) for text in texts)
    assert ours.text == theirs.text
    spoken = [turn for turn in ours.turns if turn.message.role == "assistant"]
    assert len(spoken) == sum(message.role == "assistant" for message in USED[used])
    assert all(ours.text[turn.content_end : turn.end].endswith("<|im_end|>") for turn in spoken)


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
def test_qwen3_equals_the_published_one(talk: list[tuple[str, str]], chatml: Any, corpus: Path) -> None:
    theirs = (corpus / "chat_templates" / "axolotl__qwen3.jinja").read_text(encoding="utf8")
    assert render(catalog.load(catalog.TEMPLATES["qwen3"]), talk, chatml).text == render(theirs, talk, chatml).text


def test_a_template_that_cannot_place_a_turn_refuses_it(chatml: Any) -> None:
    talk = [("user", "a?"), ("assistant", "b."), ("system", "S."), ("user", "c?"), ("assistant", "d.")]
    with pytest.raises(DataError, match="gemma has no place for a later turn of the role system"):
        render(catalog.load(catalog.TEMPLATES["gemma"]), talk, chatml)


def test_tool_calls_are_never_left_out_silently(chatml: Any) -> None:
    call = Message("assistant", "", None, {"tool_calls": [{"function": {"name": "f", "arguments": {}}}]})
    renderer = build_renderer(NamedTemplate(catalog.load(catalog.TEMPLATES["chatml"]), "test"), chatml)
    with pytest.raises(DataError, match="the chat template leaves out the row's tool calls"):
        renderer.render(Conversation((Message("user", "a?"), call), Where("rows.jsonl", 1)))
