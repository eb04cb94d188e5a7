from __future__ import annotations

from typing import Any

import pytest

from ftkit import catalog
from ftkit.data.values import Conversation, Row, Segments, Tokens, Where
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection

WHERE = Where("rows.jsonl", 3)


def formatted(type_: str, values: dict[str, Any], **keys: Any) -> Conversation | Segments | Tokens:
    dataset = DatasetSection(path="rows.jsonl", type=type_, **keys)
    record = catalog.load(catalog.FORMATS[type_])(dataset)(Row(values, WHERE))
    assert isinstance(record, Conversation | Segments | Tokens)
    return record


def turns(type_: str, values: dict[str, Any], **keys: Any) -> list[tuple[str, str]]:
    record = formatted(type_, values, **keys)
    assert isinstance(record, Conversation)
    return [(message.role, message.content) for message in record.messages]


def segments(type_: str, values: dict[str, Any], **keys: Any) -> list[tuple[str, bool]]:
    record = formatted(type_, values, **keys)
    assert isinstance(record, Segments)
    return [(segment.text, segment.train) for segment in record.segments]


def refused(type_: str, values: dict[str, Any], **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        formatted(type_, values, **keys)
    return str(caught.value)


SHAREGPT = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
MESSAGES = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def test_sharegpt_and_messages_give_the_same_turns() -> None:
    assert turns("sharegpt", SHAREGPT) == turns("chat_template", MESSAGES) == [("user", "a"), ("assistant", "b")]


def test_either_type_reads_the_other_by_mapped_names() -> None:
    names = {"field_messages": "messages", "message_property_mappings": {"role": "role", "content": "content"}}
    assert turns("sharegpt", MESSAGES, **names) == turns("chat_template", MESSAGES)
    old = {"field_messages": "conversations", "message_field_role": "from", "message_field_content": "value"}
    assert turns("chat_template", SHAREGPT, **old) == turns("sharegpt", SHAREGPT)


def test_turns_stay_where_and_as_they_are() -> None:
    values = [("gpt", " b\n"), ("system", "S2"), ("human", ""), ("human", "c"), ("tool", "t")]
    row = {"conversations": [{"from": role, "value": text} for role, text in values]}
    ours = ["assistant", "system", "user", "user", "tool"]
    assert turns("sharegpt", row) == [(role, text) for role, (_, text) in zip(ours, values, strict=True)]


def test_own_role_names_are_mapped() -> None:
    row = {"conversations": [{"from": "Q", "value": "a"}, {"from": "robot", "value": "b"}]}
    assert turns("sharegpt", row, roles={"user": ["Q"], "assistant": ["robot"]}) == [("user", "a"), ("assistant", "b")]
    assert refused("sharegpt", row).startswith("rows.jsonl:3: turn 1: unknown role, got 'Q'\nhelp: use one of system")


def test_a_system_column_goes_in_front_unless_a_system_turn_is_there() -> None:
    assert turns("sharegpt", {**SHAREGPT, "system": "S"})[0] == ("system", "S")
    own = {"conversations": [{"from": "system", "value": "own"}, *SHAREGPT["conversations"]], "system": "S"}
    assert turns("sharegpt", own)[0] == ("system", "own")


def test_a_row_may_say_which_turns_are_trained() -> None:
    row = {"messages": [{"role": "assistant", "content": "a", "weight": 0}, {"role": "user", "content": "b"}]}
    record = formatted("chat_template", row)
    assert isinstance(record, Conversation)
    assert [message.train for message in record.messages] == [False, None]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "value": "b"}]
    assert turns("chat_template", {"messages": [{"role": "user", "content": parts}]}) == [("user", "ab")]


def test_tools_may_be_json_text() -> None:
    record = formatted("sharegpt", {**SHAREGPT, "tools": '[{"name": "f"}]'})
    assert isinstance(record, Conversation)
    assert record.tools == ({"name": "f"},)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": None}]},
            "rows.jsonl:3: turn 2: 'value' must be text, got null\n"
            "help: fill it in, remove the row, or set bad_rows: skip",
        ),
        (
            {"conversations": [{"from": "human", "value": 5}]},
            "rows.jsonl:3: turn 1: 'value' must be text, got int 5\n"
            "help: put the value in quotes, remove the row, or set bad_rows: skip",
        ),
        (
            {"conversations": [{"from": "human"}]},
            "rows.jsonl:3: turn 1 has no 'value', got keys from\n"
            "help: name the keys: message_property_mappings: {role: ..., content: ...}",
        ),
        (
            {"conversations": []},
            "rows.jsonl:3: column 'conversations' must be a list with at least one entry, got an empty list\n"
            "help: mend or remove the row, or set bad_rows: skip",
        ),
        (
            {"conversations": None},
            "rows.jsonl:3: column 'conversations' must be a list with at least one entry, got null\n"
            "help: mend or remove the row, or set bad_rows: skip",
        ),
        (
            MESSAGES,
            "rows.jsonl:3: the row has no column 'conversations'\n"
            "help: the row has 'messages': did you mean type: chat_template? All its columns: messages",
        ),
        (
            {"prompt": "a", "response": "b"},
            "rows.jsonl:3: the row has no column 'conversations'\n"
            "help: name the column in this data set's entry (the row has: prompt, response)",
        ),
        (
            {"conversations": [{"from": "human", "value": "\ud83d"}]},
            "rows.jsonl:3: turn 1: 'value' holds half of a surrogate pair, got '\\ud83d'\n"
            "help: mend the character, remove the row, or set bad_rows: skip",
        ),
    ],
)
def test_a_row_that_cannot_be_used_is_one_clear_error(values: dict[str, Any], message: str) -> None:
    assert refused("sharegpt", values) == message


@pytest.mark.parametrize("given", [{}, {"input": None}, {"input": ""}, {"input": " \n"}])
def test_alpaca_without_input_takes_the_short_prompt(given: dict[str, Any]) -> None:
    assert segments("alpaca", {"instruction": "Say hi", "output": "hi", **given}) == [
        (
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
            "\n\n### Instruction:\nSay hi\n\n### Response:\n",
            False,
        ),
        ("hi", True),
    ]


def test_alpaca_prompts_equal_a_data_set_that_spells_them_out(corpus: Any) -> None:
    import json

    rows = json.loads((corpus / "data" / "alpaca_tiny_torchtune.json").read_text(encoding="utf8"))
    spelled = ["".join(text for text, _ in segments("alpaca", row)) for row in rows]
    assert spelled == [row["text"] for row in rows]


def test_alpaca_without_output_is_refused() -> None:
    assert refused("alpaca", {"instruction": "Say hi"}).startswith("rows.jsonl:3: the row has no column 'output'")


def test_text_with_braces_is_not_filled_in() -> None:
    assert segments("alpaca", {"instruction": "{input}", "output": "{x}"})[0][0].count("{input}") == 1


def test_alpaca_relatives_differ_by_columns_and_prompt() -> None:
    answer = [("b", True)]
    assert segments("alpaca_chat.load_qa", {"question": "a", "answer": "b"})[1:] == answer
    assert segments("gpteacher", {"instruction": "a", "response": "b"})[1:] == answer
    orca = segments("alpaca_w_system.load_open_orca", {"system_prompt": "S", "question": "a", "response": "b"})
    assert orca == [("S\n\n### Instruction:\na\n\n### Response:\n", False), *answer]
    own = segments("alpaca", {"q": "a", "a": "b"}, field_instruction="q", field_output="a", system_prompt="S")
    assert own == orca


def test_reflection_trains_thought_reflection_and_correction() -> None:
    row = {"instruction": "a", "output": "b", "reflection": "c {x}", "corrected": "d"}
    (prompt, is_trained), answer = segments("reflection", row)
    assert prompt.startswith("Below is an instruction that describes a task. You, the Assistant, should generate")
    assert prompt.endswith("as augmentations to the generation\n\n### Instruction:\na\n\n### Response:\n")
    assert not is_trained
    assert answer == ("### Thought:\nb\n\n### Agent Reflection:\nc {x}\n\n### Final Response:\nd", True)
    (prompt, _), _ = segments("reflection", row | {"input": "i"}, field_instruction="output")
    assert "further context. You, the Assistant" in prompt
    assert prompt.endswith("### Instruction:\nb\n\n### Input:\ni\n\n### Response:\n")
    missing = {name: text for name, text in row.items() if name != "reflection"}
    assert refused("reflection", missing).startswith("rows.jsonl:3: the row has no column 'reflection'")
    assert "did you mean type: reflection?" in refused("sharegpt", row)


def test_a_row_of_many_columns_names_some_of_them() -> None:
    message = refused("alpaca", {f"c{number}": 1 for number in range(20)})
    assert message.endswith("(the row has: c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 and 8 more)")
    assert refused("alpaca", {"words": "a"}).endswith(
        "the row has 'words' alone; to train on that text: type: completion, field: words"
    )


def test_an_object_of_named_rows_is_told_from_a_row() -> None:
    assert refused("alpaca", {"one": {"instruction": "a"}, "two": {"instruction": "b"}}) == (
        "rows.jsonl:3: the file is one object of 2 named rows, not a list of rows\n"
        "help: write its rows one a line: jq -c '.[]' rows.jsonl > rows_rows.jsonl"
    )


def test_rows_and_turns_within_a_column_are_found() -> None:
    rows = {"version": "1", "data": [{"instruction": "a", "output": "b"}] * 3}
    assert refused("alpaca", rows) == (
        "rows.jsonl:3: the row has no column 'instruction'\n"
        "help: column 'data' holds 3 rows; write them one a line: jq -c '.data[]' rows.jsonl > rows_rows.jsonl"
    )
    for turn, type_ in (({"role": "user"}, "chat_template"), ({"from": "human"}, "sharegpt")):
        assert refused("alpaca", {"id": 1, "dialog": [turn]}).endswith(
            f"help: column 'dialog' holds turns: type: {type_}, field_messages: dialog"
        )


def test_completion_trains_one_column() -> None:
    assert segments("completion", {"text": "a"}) == segments("pretrain", {"x": "a"}, field="x") == [("a", True)]


def test_input_output_is_taken_as_it_stands() -> None:
    row = {"segments": [{"label": False, "text": "<s>"}, {"label": True, "text": "b"}]}
    record = formatted("input_output", row)
    assert isinstance(record, Segments)
    assert (record.add_bos, record.add_eos) == (False, False)
    assert segments("input_output", row) == [("<s>", False), ("b", True)]
    assert refused("input_output", {"segments": [{"label": "yes", "text": "b"}]}).startswith(
        "rows.jsonl:3: segment 1: 'label' must be true or false, got 'yes'"
    )


def test_user_defined_formats_fill_in_their_own_columns() -> None:
    type_ = {
        "field_instruction": "question",
        "field_input": "context",
        "field_output": "answer",
        "format": "[INST] {input}\n{instruction} [/INST]",
    }
    dataset = DatasetSection(path="rows.jsonl", type=type_)
    row = Row({"question": "q", "context": "{c}", "answer": "a"}, WHERE)
    record = catalog.load(catalog.FORMATS["custom"])(dataset)(row)
    assert [(segment.text, segment.train) for segment in record.segments] == [
        ("[INST] {c}\nq [/INST]", False),
        ("a", True),
    ]


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        ({"fromat": "x"}, "rows.jsonl: unknown key of a user-defined type, got fromat"),
        ({"format": "{question}"}, "rows.jsonl: a format string names a field that does not exist, got {question}"),
        ({"format": "{instruction"}, "rows.jsonl: not a format string: expected '}' before end of string"),
    ],
)
def test_a_user_defined_format_that_cannot_work_is_refused(type_: dict[str, str], message: str) -> None:
    with pytest.raises(DataError) as caught:
        catalog.load(catalog.FORMATS["custom"])(DatasetSection(path="rows.jsonl", type=type_))
    assert str(caught.value).startswith(message)


def test_pairs_become_turns() -> None:
    row = {"system": "S", "conversation": [{"human": "a", "assistant": "b"}, {"human": "c", "assistant": "d"}]}
    expected = [("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    assert turns("sharegpt", row, field_messages="conversation") == expected


def test_tools_nested_too_deep_are_refused() -> None:
    row = {"messages": [{"role": "user", "content": "a"}], "tools": "[" * 100_000}
    assert refused("chat_template", row).startswith("rows.jsonl:3: column 'tools' is no JSON: maximum recursion")


def test_a_history_comes_before_the_question() -> None:
    row = {"query": "c", "response": "d", "history": [["a", "b"]], "system": "S"}
    assert [text for _, text in turns("query_response", row)] == ["S", "a", "b", "c", "d"]
    assert refused("query_response", {**row, "history": 5}).startswith(
        "rows.jsonl:3: column 'history' must be a list with at least one entry, got int 5"
    )
    assert refused("query_response", {**row, "history": [["a"]]}).startswith(
        "rows.jsonl:3: history 1 must be a query and a response, got 1 entries"
    )


def test_a_tree_gives_its_best_ranked_branch() -> None:
    def node(role: str, text: str, *replies: Any, rank: int | None = None) -> dict[str, Any]:
        return {"role": role, "text": text, "rank": rank, "replies": list(replies)}

    tree = node(
        "prompter", "a", node("assistant", "worse", rank=1), node("assistant", "b", node("prompter", "c"), rank=0)
    )
    assert turns("oasst", tree) == [("user", "a"), ("assistant", "b"), ("user", "c")]
    assert "the row is no tree" in refused("oasst", {"role": "prompter", "text": "a"})


def test_parts_may_hold_reasoning_and_tool_calls() -> None:
    parts = [{"type": "reasoning", "value": "hm"}, {"type": "tool_call", "value": '{"name": "f", "arguments": {}}'}]
    record = formatted("chat_template", {"messages": [{"role": "assistant", "content": parts}]})
    assert isinstance(record, Conversation)
    assert record.messages[0].content == ""
    assert record.messages[0].extra == {
        "reasoning_content": "hm",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}],
    }
    image = [{"type": "image", "value": "x.png"}]
    assert "got type 'image'" in refused("chat_template", {"messages": [{"role": "user", "content": image}]})


def test_every_line_of_the_catalog_builds_a_formatter() -> None:
    for name in catalog.FORMATS:
        type_: Any = {"format": "{instruction}"} if name == "custom" else name
        assert callable(catalog.load(catalog.FORMATS[name])(DatasetSection(path="rows.jsonl", type=type_)))
