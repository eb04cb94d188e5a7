"""Every published template of the corpus over twelve shapes of conversation, against prefixes rendered alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftkit.data.chat.choose import NamedTemplate, build_renderer
from ftkit.data.chat.environment import RefusedError
from ftkit.data.chat.probe import as_parts, strip_blocks
from ftkit.data.chat.renderer import Renderer
from ftkit.data.prompt import compare_prompt
from ftkit.data.values import Conversation, Message, Where
from ftkit.errors import DataError

WHERE = Where("rows.jsonl", 1)
CALL = [{"type": "function", "id": "abcdefghi", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]


def talk(*turns: tuple[str, str], **extras: dict[str, Any]) -> tuple[Message, ...]:
    return tuple(Message(role, text, None, extras.get(f"turn{n}", {})) for n, (role, text) in enumerate(turns))


U, A, S = "user", "assistant", "system"
SHAPES = {
    "system first": talk((S, "Be brief."), (U, "2+2?"), (A, "4.")),
    "system later": talk((U, "a?"), (A, "b."), (S, "S2."), (U, "c?"), (A, "d.")),
    "no system": talk((U, "Say hi"), (A, "hi."), (U, "Again"), (A, "hi again.")),
    "same role twice": talk((U, "one"), (U, "two"), (A, "three."), (A, "four.")),
    "assistant first": talk((A, "How can I help?"), (U, "2+2?"), (A, "4.")),
    "ends on user": talk((U, "a?"), (A, "b."), (U, "c?")),
    "tools": talk(
        (U, "weather?"),
        (A, ""),
        ("tool", "sunny"),
        (A, "It is sunny."),
        turn1={"tool_calls": CALL},
        turn2={"name": "get_weather", "tool_call_id": "abcdefghi"},
    ),
    "empty system": talk((S, ""), (U, "2+2?"), (A, "4.")),
    "unicode": talk((U, "naïve 👩‍🚀 ﷽ 你好"), (A, "é ≠ é\t\u200b!")),
    "very long": talk((U, "w " * 3000 + "end"), (A, "x " * 3000 + "end")),
    "reasoning": talk((U, "a?"), (A, "<think>\nt\n</think>\n\none."), (U, "b?"), (A, "<think>\nu\n</think>\n\ntwo.")),
    "one turn": talk((U, "only"), (A, "turn.")),
}
# Templates whose own prefixes are no reference: they end a conversation with more than the last turn's end.
OPENS_THE_NEXT_TURN = ("axolotl__command_a", "axolotl__command_a_tool_use")  # in every render
CLOSES_WITH_EOS = ("trl__phi3_5_training",)  # behind the last turn's own end
# Behind a tool's result the template opens a turn that its own prompt does not; the proof refuses such rows.
BROKEN = {("nemo__dllm_sft__diffusion_gemma_chat_template", "tools")}


@pytest.fixture(scope="module")
def renderers(corpus: Path, chatml: Any) -> dict[str, Renderer]:
    files = sorted((corpus / "chat_templates").glob("*.jinja"))
    templates = {file.stem: NamedTemplate(file.read_text(encoding="utf8"), file.name) for file in files}
    return {name: build_renderer(template, chatml) for name, template in templates.items()}


def test_all_are_there(renderers: dict[str, Renderer]) -> None:
    assert len(renderers) == 74


@pytest.mark.parametrize("shape", SHAPES)
def test_what_the_model_says_lies_between_the_prompt_and_its_end(renderers: dict[str, Renderer], shape: str) -> None:
    num_compared = 0
    for name, renderer in renderers.items():
        try:
            made = renderer.render(Conversation(SHAPES[shape], WHERE))
        except DataError as refused:
            assert_refused_for_a_reason(name, shape, renderer, refused)
            continue
        if (name, shape) in BROKEN:
            assert compare_prompt(renderer, Conversation(SHAPES[shape], WHERE), made).broken
            continue
        spoken = iter([turn for turn in made.turns if turn.message.role == A])
        for number, message in enumerate(SHAPES[shape]):
            if message.role != A:
                continue
            turn = next(spoken)
            before = number and prefix(renderer, SHAPES[shape][:number], add_generation_prompt=True)
            through = prefix(renderer, SHAPES[shape][: number + 1])
            said = made.text[turn.start : turn.end]
            assert said.strip(), (name, number)
            if before and made.text.startswith(before) and name not in OPENS_THE_NEXT_TURN:
                num_compared += 1
                assert made.text[: turn.start].rstrip() == before.rstrip(), (name, number, said)
            if through and made.text.startswith(through.rstrip()):
                is_exact = name not in (*OPENS_THE_NEXT_TURN, *CLOSES_WITH_EOS)
                num_compared += is_exact
                assert turn.end == len(through.rstrip()) or (not is_exact and turn.end < len(through)), (name, said)
        assert next(spoken, None) is None, name
    assert num_compared >= 20


def prefix(renderer: Renderer, messages: tuple[Message, ...], *, add_generation_prompt: bool = False) -> str | None:
    """The beginning of a conversation by the template alone; None where it refuses one."""
    turns: list[dict[str, Any]] = [{"role": m.role, "content": m.content, **m.extra} for m in messages]
    if renderer.habits.wants_parts:
        turns = [{**turn, "content": as_parts(turn["content"])} for turn in turns]
    try:
        return strip_blocks(renderer.template.render(turns, add_generation_prompt=add_generation_prompt))
    except RefusedError:
        return None


def assert_refused_for_a_reason(name: str, shape: str, renderer: Renderer, refused: DataError) -> None:
    if "refuses this conversation" in refused.what:
        assert prefix(renderer, SHAPES[shape]) is None, name
    else:
        assert "leaves out" in refused.what, (name, shape, refused)
        assert not renderer.template.reads_tool_calls, name
