from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftkit.data.prepare import Prepared, prepare
from ftkit.data.values import IGNORED
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection


def prepared(folder: Path, tokenizer: Any, *rows: dict[str, Any], **keys: Any) -> Prepared:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf8")
    own = {key: keys.pop(key) for key in ("type",) if key in keys}
    data = DataSection(datasets=(DatasetSection(path=str(path), **own),), **keys)
    return prepare(data, tokenizer, cache_dir=None, sequence_len=8, seed=1)


def test_tokens_are_taken_as_they_are_but_for_padding_and_the_first_label(tmp_path: Path, chatml: Any) -> None:
    rows = [
        {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
        {"input_ids": [5, 6, 7]},
        {"input_ids": [2, 5, 6, 2], "labels": [-100, 5, 6, -100], "attention_mask": [0, 1, 1, 0]},
    ]
    result = prepared(tmp_path, chatml, *rows, type="pretokenized")
    ids = [example.input_ids.tolist() for example in result.train]
    labels = [example.labels.tolist() for example in result.train]
    assert ids == [[5, 6, 7, 8], [5, 6, 7], [5, 6]]
    assert labels == [[IGNORED, IGNORED, 7, 8], [IGNORED, 6, 7], [IGNORED, 6]]
    assert result.report.trained_tokens == {"all": 5}
    assert result.chat_template is None


def test_rows_of_tokens_need_no_type(tmp_path: Path, chatml: Any) -> None:
    assert len(prepared(tmp_path, chatml, {"input_ids": [5, 6]}).train) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": []}, "the data set has no type\nhelp: row 1 has `messages`; did you mean type: chat_template?"),
        ({"instruction": "x"}, "help: row 1 has `instruction`; did you mean type: alpaca?"),
        ({"zzz": "x"}, "(row 1 has zzz)"),
    ],
)
def test_other_rows_without_a_type_are_told_theirs(
    tmp_path: Path, chatml: Any, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        prepared(tmp_path, chatml, row)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_ids": [5, 6], "labels": [5]}, "column 'labels' must be as long as 'input_ids' (2), got 1"),
        ({"input_ids": [5, "6"]}, "column 'input_ids' must hold whole numbers, got '6'"),
        (
            {"input_ids": [5, 6], "labels": [6, 7]},
            "a label must be its token's id or -100, got 6 for token 5 at position 0",
        ),
        ({"input_ids": [5, 99999]}, "the tokenizer has ids below 365, got 99999"),
        ({"text": "x"}, "did you mean type: completion?"),
    ],
)
def test_tokens_that_cannot_be_are_refused(tmp_path: Path, chatml: Any, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        prepared(tmp_path, chatml, row, type="pretokenized")
    assert "rows.jsonl:1" in str(caught.value)
    assert message in str(caught.value)


def test_the_length_rule_holds_for_tokens_too(tmp_path: Path, chatml: Any) -> None:
    long = {"input_ids": list(range(5, 15))}
    assert (
        len(prepared(tmp_path, chatml, long, excess_length_strategy="truncate", type="pretokenized").train[0].input_ids)
        == 8
    )
