"""The invariants of prepared rows: each refused with its line, allowed by name, counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftkit.data.accounts import SetAccount
from ftkit.data.prepare import Prepared, prepare
from ftkit.data.proof import EVERY, PER_SHAPE, PromptSample
from ftkit.data.values import Conversation, Message, Where
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection

OPENED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def rows(path: Path, *talks: list[str], first: str = "user") -> Path:
    """Conversations of alternating turns, one a line."""
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    made = [
        {"messages": [{"role": roles[number % 2], "content": text} for number, text in enumerate(talk)]}
        for talk in talks
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf8")
    return path


def prepared(path: Path, tokenizer: Any, template: str, **keys: Any) -> Prepared:
    dataset = DatasetSection(path=str(path), type="chat_template")
    data = DataSection(datasets=(dataset,), chat_template="jinja", chat_template_jinja=template, **keys)
    return prepare(data, tokenizer, cache_dir=None, sequence_len=keys.get("sequence_len", 2048), seed=1)


def account(result: Prepared) -> SetAccount:
    return result.report.train.sets[0]


def refused(*args: Any, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        prepared(*args, **keys)
    return str(caught.value)


def test_what_holds_is_counted(tmp_path: Path, chatml: Any) -> None:
    path = rows(tmp_path / "rows.jsonl", ["a", "b"], ["a", "b", "c"], ["a", "b " * 40])
    counted = account(prepared(path, chatml, TURNS + OPENED, sequence_len=30, excess_length_strategy="truncate"))
    assert (counted.documents, counted.ended, counted.truncated) == (3, 2, 1)  # the one cut off has no end
    assert counted.compared_prompts == 2  # the row that ends on the user has no last answer
    assert counted.allowed == {}


@pytest.mark.parametrize(("ends", "expected"), [("turn", 1), ("last", 1), ("all", 1), ("none", 0)])
def test_the_end_of_turn_counts_where_it_is_trained(ends: str, expected: int, tmp_path: Path, chatml: Any) -> None:
    path = rows(tmp_path / "rows.jsonl", ["a", "b", "c", "d"])
    assert account(prepared(path, chatml, TURNS + OPENED, train_on_eos=ends)).ended == expected


def test_a_doubled_begin_of_text_is_refused_with_its_line(tmp_path: Path, chatml: Any) -> None:
    """TOK-01: the template writes BOS, and the row's system text brings one more."""
    path = rows(tmp_path / "rows.jsonl", ["a", "b"])
    doubled = "{{ bos_token }}{{ bos_token }}" + TURNS + OPENED
    assert refused(path, chatml, doubled) == (
        f"{path}:1: the begin-of-text token stands twice in a row\n"
        "help: take it out of the row or the chat template, or set allow: [doubled_bos]"
    )
    assert account(prepared(path, chatml, doubled, allow=("doubled_bos",))).allowed == {"doubled_bos": 1}
    assert account(prepared(path, chatml, "{{ bos_token }}" + TURNS + OPENED)).allowed == {}


def test_another_prompt_than_that_of_inference_is_refused(tmp_path: Path, chatml: Any) -> None:
    path = rows(tmp_path / "rows.jsonl", ["a", "b"])
    opened = OPENED.replace("assistant\n", "assistant\nSure: ")
    assert refused(path, chatml, TURNS + opened) == (
        f"{path}:1: what stands before the last answer is not the prompt that inference renders, got "
        "...'m_end|>\\n<|im_start|>assistant\\n' where inference has ...'>\\n<|im_start|>assistant\\nSure: '\n"
        "help: choose a chat_template whose generation prompt is how its turns begin, or set allow: [other_prompt]"
    )
    assert account(prepared(path, chatml, TURNS + opened, allow=("other_prompt",))).allowed == {"other_prompt": 1}


def test_rows_that_break_an_invariant_can_be_skipped_and_are_named(tmp_path: Path, chatml: Any) -> None:
    path = rows(tmp_path / "rows.jsonl", ["a", "b"], ["<s><s>a", "b"])
    result = prepared(path, chatml, TURNS + OPENED, bad_rows="skip")
    assert account(result).dropped == {"breaks doubled_bos": 1}
    assert [(row.where, row.reason) for row in result.report.train.rejected] == [
        (f"{path}:2", "the begin-of-text token stands twice in a row")
    ]


def test_prompts_are_compared_by_shape_and_now_and_then() -> None:
    sample = PromptSample()
    messages = (Message("user", "a"), Message("assistant", "b"))
    wanted = [sample.wants(Conversation(messages, Where("f", n))) for n in range(3 * EVERY)]
    assert sum(wanted) == PER_SHAPE + 3
    assert sample.wants(Conversation((Message("system", "s"), *messages), Where("f", 0)))
