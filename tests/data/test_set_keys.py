"""The keys of a data set's entry and of the data section that change what a row becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftkit.data.prepare import Prepared, prepare
from ftkit.data.values import IGNORED
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection

ASK = {"role": "user", "content": "Say hi"}
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf8")
    return path


def of(path: Path, tokenizer: Any, *, eot_tokens: tuple[str, ...] = (), **keys: Any) -> Prepared:
    own = {key: value for key, value in keys.items() if key not in DataSection.model_fields}
    rest = {"chat_template": "chatml"} | {key: value for key, value in keys.items() if key not in own}
    dataset = DatasetSection(**{"path": str(path), "type": "chat_template", **own})
    data = DataSection(**{"datasets": (dataset,), **rest})
    return prepare(data, tokenizer, cache_dir=None, sequence_len=4096, seed=1, eot_tokens=eot_tokens)


def one(
    folder: Path, tokenizer: Any, *turns: dict[str, Any], row: dict[str, Any] | None = None, **keys: Any
) -> Prepared:
    return of(write(folder / "rows.jsonl", [{"messages": [*turns]} | (row or {})]), tokenizer, **keys)


def texts(tokenizer: Any, prepared: Prepared) -> list[str]:
    return [tokenizer.decode(example.input_ids) for example in prepared.train]


def trained(tokenizer: Any, prepared: Prepared) -> str:
    example = prepared.train[0]
    borders = np.flatnonzero(np.diff(example.labels != IGNORED, prepend=False, append=False))
    return "|".join(tokenizer.decode(example.input_ids[a:b]) for a, b in borders.reshape(-1, 2))


def says(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def test_system_turns_and_the_system_column_can_be_dropped(tmp_path: Path, chatml: Any) -> None:
    system = {"role": "system", "content": "S"}
    result = one(tmp_path, chatml, system, ASK, says("hi"), row={"system": "T"}, drop_system_message=True)
    assert texts(chatml, result) == ["<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\nhi<|im_end|>\n"]


@pytest.mark.parametrize(
    ("first", "row", "keys", "system"),
    [
        ([], {}, {"system_prompt": "P", "default_system_message": "D"}, "P"),
        (
            [{"role": "system", "content": "S"}],
            {"persona": "T"},
            {"system_prompt": "P", "field_system": "persona"},
            "S",
        ),
        ([], {"persona": "T", "system": "U"}, {"system_prompt": "P", "field_system": "persona"}, "T"),
        ([], {"persona": None}, {"system_prompt": "P", "field_system": "persona"}, "P"),
        ([{"role": "system", "content": "S"}], {}, {"system_prompt": "P", "drop_system_message": True}, "P"),
    ],
)
def test_the_system_text_is_the_rows_own_or_the_entrys(
    tmp_path: Path, chatml: Any, first: list[Any], row: dict[str, Any], keys: dict[str, Any], system: str
) -> None:
    result = one(tmp_path, chatml, *first, ASK, says("hi"), row=row, **keys)
    assert texts(chatml, result)[0].startswith(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user")
    assert texts(chatml, result)[0].count("system") == 1


def test_a_named_system_column_holds_text(tmp_path: Path, chatml: Any) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:1: column 'persona' must be text, got int 5"):
        one(tmp_path, chatml, ASK, says("hi"), row={"persona": 5}, field_system="persona")


def test_a_row_of_system_turns_alone_is_said_to_be_left_with_nothing(tmp_path: Path, chatml: Any) -> None:
    with pytest.raises(DataError, match="nothing but system turns"):
        one(tmp_path, chatml, {"role": "system", "content": "S"}, drop_system_message=True)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"message_field_training": "learn"}, "yes<|im_end|>|too<|im_end|>"),
        ({}, "no<|im_end|>|yes<|im_end|>|too<|im_end|>"),
    ],
)
def test_a_key_of_ones_own_says_which_turns_are_trained(
    tmp_path: Path, chatml: Any, keys: dict[str, Any], expected: str
) -> None:
    turns = [says("no", learn=False), says("yes", learn=True), says("too")]
    assert trained(chatml, one(tmp_path, chatml, ASK, *turns, **keys)) == expected


def test_a_wish_may_be_a_word(tmp_path: Path, chatml: Any) -> None:
    turns = [says("a", train="no"), says("b", train="Yes"), says("c", weight="0"), says("d", training="false")]
    assert trained(chatml, one(tmp_path, chatml, ASK, *turns)) == "b<|im_end|>"


@pytest.mark.parametrize(("key", "keys"), [("learn", {"message_field_training": "learn"}), ("train", {})])
def test_a_wish_that_is_no_flag_is_refused(tmp_path: Path, chatml: Any, key: str, keys: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=rf"rows.jsonl:1: turn 2: '{key}' must be true or false, got 'maybe'"):
        one(tmp_path, chatml, ASK, says("hi", **{key: "maybe"}), **keys)


def part(first: int, last: int, train: bool) -> dict[str, Any]:
    return {"begin_offset": first, "end_offset": last, "train": train}


def test_parts_of_a_turn_are_trained_by_their_characters(tmp_path: Path, chatml: Any) -> None:
    detail = [part(0, 4, False), part(5, 9, True), part(10, 13, False)]
    result = one(tmp_path, chatml, ASK, says("0123\n5678\nabcd", parts=detail), message_field_training_detail="parts")
    assert trained(chatml, result) == "5678\n|<|im_end|>"


def test_parts_count_white_space_that_the_template_takes_away(tmp_path: Path, chatml: Any) -> None:
    trims = THINKS.replace("m.content", "m.content | trim")
    result = one(
        tmp_path,
        chatml,
        ASK,
        says("  ab\ncd ", parts=[part(0, 3, False), part(5, 7, True)]),
        message_field_training_detail="parts",
        chat_template_jinja=trims,
        chat_template="jinja",
    )
    assert trained(chatml, result) == "cd<|im_end|>"


@pytest.mark.parametrize(
    ("detail", "message"),
    [
        ([part(0, 3, True), part(3, 4, True)], "parts must not overlap or be empty, got 0-3, 3-4"),
        ([part(0, 9, True)], "parts must lie within its 5 characters, got 0-9"),
        ([{"begin_offset": 0}], "turn 2: parts 1 must have begin_offset, end_offset and train"),
        ("all", "turn 2: 'parts' must be a list with at least one entry, got str 'all'"),
    ],
)
def test_parts_that_cannot_be_are_refused(tmp_path: Path, chatml: Any, detail: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        one(tmp_path, chatml, ASK, says("hello", parts=detail), message_field_training_detail="parts")
    assert message in str(caught.value)
    assert "rows.jsonl:1" in str(caught.value)


def test_tools_may_stand_in_another_column(tmp_path: Path, chatml: Any) -> None:
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + THINKS
    row = {"functions": [{"name": "clock"}]}
    keys = {"chat_template": "jinja", "chat_template_jinja": template}
    given = one(tmp_path, chatml, ASK, says("hi"), row=row, field_tools="functions", **keys)
    assert texts(chatml, given)[0].startswith('[{"name": "clock"}]<|im_start|>')
    assert texts(chatml, one(tmp_path, chatml, ASK, says("hi"), row=row, **keys))[0].startswith("<|im_start|>")


def test_a_turn_of_tool_calls_alone_keeps_them(tmp_path: Path, chatml: Any) -> None:
    template = THINKS.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}")
    call = {"role": "assistant", "tool_calls": [{"name": "clock"}]}
    result = one(tmp_path, chatml, ASK, call, chat_template="jinja", chat_template_jinja=template)
    assert trained(chatml, result) == '[{"name": "clock"}]<|im_end|>'


@pytest.mark.parametrize(
    ("turn", "keys"),
    [
        (says("hi", thought="hm"), {"field_thinking": "thought"}),
        (says("<think>\nhm\n</think>\n\nhi"), {"split_thinking": True}),
        (
            says("<|begin_of_thought|>hm<|end_of_thought|> <|begin_of_solution|>\nhi<|end_of_solution|>"),
            {"split_thinking": True},
        ),
        (says("hi", reasoning_content="hm"), {}),
    ],
    ids=["a key", "think", "thought", "as it is"],
)
def test_reasoning_reaches_the_template_from_where_it_is(
    tmp_path: Path, chatml: Any, turn: dict[str, Any], keys: dict[str, Any]
) -> None:
    result = one(tmp_path, chatml, ASK, turn, chat_template="jinja", chat_template_jinja=THINKS, **keys)
    assert trained(chatml, result) == "<think>hm</think>hi<|im_end|>"


def test_reasoning_goes_by_the_name_the_template_has(tmp_path: Path, chatml: Any) -> None:
    keys = {"chat_template": "jinja", "chat_template_jinja": THINKS.replace("reasoning_content", "thinking")}
    keys |= {"field_thinking": "thought", "template_thinking_key": "thinking"}
    assert trained(chatml, one(tmp_path, chatml, ASK, says("hi", thought="hm"), **keys)).startswith("<think>hm</think>")


def test_a_template_that_would_leave_reasoning_out_is_refused(tmp_path: Path, chatml: Any) -> None:
    with pytest.raises(DataError, match="leaves out reasoning: it does not read 'reasoning_content'"):
        one(tmp_path, chatml, ASK, says("<think>hm</think>hi"), split_thinking=True)


def test_values_for_the_template_are_its_defaults_from_then_on(tmp_path: Path, chatml: Any) -> None:
    template = "{% if loud %}LOUD {{ names | join('+') }} {% endif %}" + THINKS
    keys = {"chat_template": "jinja", "chat_template_jinja": template}
    values = {"loud": True, "names": ["it's", 'a "b"']}
    result = one(tmp_path, chatml, ASK, says("hi"), chat_template_kwargs=values, **keys)
    assert texts(chatml, result)[0].startswith('LOUD it\'s+a "b" <|im_start|>user')
    own: dict[str, Any] = {"chat_template": result.chat_template, "tokenize": False}
    assert chatml.apply_chat_template([ASK], **own).startswith("LOUD")
    assert chatml.apply_chat_template([ASK], loud=False, **own).startswith("<|im_start|>")


def test_values_cannot_stand_in_for_the_conversation(tmp_path: Path, chatml: Any) -> None:
    with pytest.raises(DataError, match="chat_template_kwargs: no value of a chat template, got messages"):
        one(tmp_path, chatml, ASK, says("hi"), chat_template_kwargs={"messages": []})


def test_further_tokens_can_end_a_turn(tmp_path: Path, chatml: Any) -> None:
    template = "{% for m in messages %}{{ m.role }}:\n{{ m.content }}<pad>\n\n{% endfor %}"
    template += "{% if add_generation_prompt %}assistant:\n{% endif %}"
    turns = [ASK, says("one"), ASK, says("two")]
    keys: dict[str, Any] = {"chat_template": "jinja", "chat_template_jinja": template}
    result = one(tmp_path, chatml, *turns, eot_tokens=("<pad>",), **keys)
    assert trained(chatml, result) == "one<pad>|two<pad>"


def test_an_end_of_turn_that_is_no_token_is_refused(tmp_path: Path, chatml: Any) -> None:
    with pytest.raises(DataError, match="eot_tokens: the tokenizer has no such token, got <over>"):
        one(tmp_path, chatml, ASK, says("hi"), eot_tokens=("<over>",))


def test_short_documents_are_left_out_and_counted(tmp_path: Path, chatml: Any) -> None:
    rows = [{"text": "a b c d e f g h i j"}, {"text": "a"}]
    result = of(write(tmp_path / "rows.jsonl", rows), chatml, type="completion", min_sample_len=5)
    assert result.report.dropped == {"shorter than min_sample_len": 1}
    assert len(result.train) == 1


def test_equal_rows_are_used_once(tmp_path: Path, chatml: Any) -> None:
    rows = [{"text": text} for text in ("one", "two", "one", "one", "three")]
    result = of(write(tmp_path / "rows.jsonl", rows), chatml, type="completion", dataset_exact_deduplication=True)
    assert [example.where.line for example in result.train] == [1, 2, 5]
    assert result.report.dropped == {"equal to an earlier row": 2}


def test_equal_text_with_another_mask_is_another_row(tmp_path: Path, chatml: Any) -> None:
    rows = [{"messages": [ASK, says("hi", train=flag), says("hi")]} for flag in (True, False, True)]
    result = of(write(tmp_path / "rows.jsonl", rows), chatml, dataset_exact_deduplication=True)
    assert [example.where.line for example in result.train] == [1, 2]


@pytest.mark.parametrize(("index", "kept"), [(None, [1, 4, 7]), (0, [1, 4, 7]), (2, [3, 6])])
def test_one_of_several_shards_is_used(tmp_path: Path, chatml: Any, index: int | None, kept: list[int]) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": f"row {number}"} for number in range(7)])
    result = of(path, chatml, type="completion", shards=3, shards_idx=index)
    assert [example.where.line for example in result.train] == kept


def test_a_shard_that_is_not_there_is_refused(tmp_path: Path, chatml: Any) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": "x"}])
    with pytest.raises(DataError, match="shards_idx must lie between 0 and 2, got 3"):
        of(path, chatml, type="completion", shards=3, shards_idx=3)
