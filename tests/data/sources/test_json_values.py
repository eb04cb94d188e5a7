"""JSON read a piece at a time is JSON read whole: values, lines and errors."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftkit.data.sources.json_values import BrokenJsonError, json_values
from ftkit.errors import DataError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just("007"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), max_size=5)


def read(content: bytes, piece: int) -> list[tuple[Any, int]]:
    return list(json_values(io.BytesIO(content), "f", piece))


@settings(deadline=None, max_examples=150)
@given(
    rows=ROWS,
    piece=st.integers(1, 40),
    indent=st.sampled_from([None, 0, 2]),
    is_ascii=st.booleans(),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_an_array_in_pieces_is_what_the_whole_parser_reads(
    rows: list[Any], piece: int, indent: int | None, is_ascii: bool, mark: bytes
) -> None:
    text = json.dumps(rows, indent=indent, ensure_ascii=is_ascii)
    found = read(mark + text.encode(), piece)
    assert repr([value for value, _ in found]) == repr(json.loads(text))  # repr tells 1, 1.0 and True apart


@given(rows=ROWS, piece=st.integers(1, 40), between=st.sampled_from(["", "\n", " \r\n\n"]))
def test_values_one_after_another_have_their_lines(rows: list[Any], piece: int, between: str) -> None:
    texts = [json.dumps(row, indent=1) for row in rows]
    lines, line = [], 1
    for text in texts:
        lines.append(line)
        line += (text + between).count("\n")
    assert read(between.join(texts).encode(), piece) == list(zip(rows, lines, strict=True))


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_file_cut_anywhere_within_its_array_is_an_error(piece: int) -> None:
    content = '[{"a": "ü\\u00e9", "b": [1.5e+3, true, -7]},\n {"c": null}]'.encode()
    assert len(read(content, piece)) == 2
    for end in range(1, len(content)):
        with pytest.raises((BrokenJsonError, DataError)):
            read(content[:end], piece)


@pytest.mark.parametrize("piece", [1, 9, 1000])
@pytest.mark.parametrize(
    ("content", "what", "line"),
    [
        ('[{"a": 1}\n {"a": 2}]', "not JSON: expected ',' or ']' after a row", 2),
        ('[{"a": 1},\n', "not JSON: the file ends within its array", 2),
        ('[{"a": 1}]\n\n{"a": 2}', "not JSON: there is more behind the array", 3),
        ('{"a":\n 1}\n{"a":\n\n x}', "not JSON: Expecting value", 5),
        ('[{"a": 1},\n{"a": "x\ny"}]', "not JSON: Invalid control character at", 2),
        ('[{"a": 1},\n{"a" 2}]' + " " * 99, "not JSON: Expecting ':' delimiter", 2),
        ('[\n{"a": ' + "1" * 5000 + "}]", "not JSON: Exceeds the limit (4300 digits) for integer string conversion", 2),
    ],
)
def test_what_is_broken_is_said_with_its_line(piece: int, content: str, what: str, line: int) -> None:
    with pytest.raises(BrokenJsonError) as caught:
        read(content.encode(), piece)
    assert caught.value.what.startswith(what)
    assert caught.value.line == line


@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_bytes_that_are_no_text_are_said_with_their_line(piece: int) -> None:
    with pytest.raises(DataError, match=r"^f:3: not UTF-8 text, got byte 0xff"):
        read(b'[{"a": "x"},\n\n{"a": "\xc3\xa9\xff"}]', piece)


def test_no_more_is_read_than_the_rows_asked_for() -> None:
    file = io.BytesIO(b"[" + b'{"text": "some words"},\n' * 100_000 + b"{}]")
    rows = json_values(file, "f", 1 << 10)
    assert [next(rows)[1] for _ in range(50)] == list(range(1, 51))
    assert file.tell() < 50 * 30 + (2 << 10)


def test_what_is_broken_is_said_before_the_rest_is_read() -> None:
    file = io.BytesIO(b'[{"text" "some words"},\n' + b'{"text": "some words"},\n' * 100_000 + b"{}]")
    with pytest.raises(BrokenJsonError):
        next(json_values(file, "f", 1 << 10))
    assert file.tell() == 1 << 10
