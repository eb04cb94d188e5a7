from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from ftkit.data.formats.links import join_links
from ftkit.data.formats.oasst import build
from ftkit.data.values import Conversation, Row, Where
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection


def message(name: str, parent: str | None, **more: Any) -> dict[str, Any]:
    role = "prompter" if name.startswith("q") else "assistant"
    return {"message_id": name, "parent_id": parent, "text": name, "role": role, **more}


def joined(*messages: dict[str, Any]) -> list[tuple[int, str]]:
    rows = [Row(values, Where("rows.jsonl", line)) for line, values in enumerate(messages, start=1)]
    made = [build(DatasetSection(path="rows.jsonl"))(row) for row in join_links(rows)]
    return [
        (one.where.line, " ".join(m.content for m in one.messages)) for one in made if isinstance(one, Conversation)
    ]


def test_messages_are_joined_by_their_parents_ids_in_any_order() -> None:
    found = joined(
        message("a2", "q1", rank=0),
        message("q1", None),
        message("q2", None),
        message("a1", "q1", rank=1),
        message("q3", "a2"),
        message("a4", "q2"),
    )
    assert found == [(2, "q1 a2 q3"), (3, "q2 a4")]


def test_trees_pass_as_they_are() -> None:
    assert joined({**message("q1", None), "replies": [{**message("a1", "q1"), "replies": []}]}) == [(1, "q1 a1")]


def test_other_names_of_the_ids_are_known() -> None:
    answer = {"task_message_id": "z", "parent_message_id": "u", "text": "a", "role": "assistant"}
    question = {"task_message_id": "x", "user_message_id": "u", "parent_message_id": None, "text": "q"}
    assert joined({**question, "role": "prompter"}, answer) == [(1, "q a")]


def test_a_message_without_its_parent_is_refused_by_its_line() -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:2: the message's parent is not among the rows, got q9"):
        joined(message("q1", None), message("a1", "q9"))


def test_messages_in_a_circle_belong_to_no_conversation() -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:2: the message answers one that answers it"):
        joined(message("q1", None), message("a1", "q2"), message("q2", "a1"))


def test_trees_are_made_one_at_a_time() -> None:
    def rows(num_trees: int) -> Iterator[Row]:
        for number in range(num_trees * 2):
            values = message(f"q{number}" if number % 2 == 0 else "a", f"q{number - 1}" if number % 2 else None)
            yield Row(values | {"text": f"{number} " * 500}, Where("rows.jsonl", number + 1))

    def peak(num_trees: int) -> int:
        tracemalloc.start()
        try:
            assert sum(len(row.values["replies"]) for row in join_links(rows(num_trees))) == num_trees
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(1200) < peak(300) + 200_000  # 1800 more messages hold 6 MB of text
