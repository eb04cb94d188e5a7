from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftkit.data.preview import Piece, Style, as_text, bar, pieces_of
from ftkit.data.values import IGNORED, Example, Where

PLAIN, ASCII, COLOUR = Style(colour=False, unicode=True), Style(colour=False, unicode=False), Style(True, unicode=True)


def example(tokenizer: Any, text: str, trained: str) -> Example:
    """A document whose tokens inside `trained` are trained."""
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    start = text.index(trained)
    inside = [start <= a and b <= start + len(trained) for a, b in encoding.offsets]
    ids = np.array(encoding.ids, np.int32)
    return Example(ids, np.where(inside, ids, IGNORED), Where("rows.jsonl", 1))


TEXT = "<|im_start|>user\nnaïve 👩‍🚀?<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"


def test_pieces_give_the_text_and_keep_every_token(any_tokenizer: Any) -> None:
    document = example(any_tokenizer, TEXT, "yes<|im_end|>")
    pieces = pieces_of(document, any_tokenizer)
    assert [token for piece in pieces for token in piece.ids] == document.input_ids.tolist()
    assert [piece.text for piece in pieces if piece.is_special and "im_end" in piece.text] == ["<|im_end|>"] * 2
    assert "".join(piece.text for piece in pieces if piece.is_trained).lstrip() == "yes<|im_end|>"
    trained = [token for piece in pieces if piece.is_trained for token in piece.ids]
    assert trained == document.input_ids[document.labels != IGNORED].tolist()


def test_an_emoji_of_many_tokens_is_one_piece(chatml: Any) -> None:
    pieces = pieces_of(example(chatml, TEXT, "yes<|im_end|>"), chatml)
    assert "".join(piece.text for piece in pieces) == TEXT


def test_plain_text_marks_what_is_trained(chatml: Any) -> None:
    pieces = pieces_of(example(chatml, TEXT.replace("naïve 👩‍🚀", "x"), "yes<|im_end|>"), chatml)
    assert as_text(pieces, PLAIN) == ("<|im_start|>user↵\nx?<|im_end|>↵\n<|im_start|>assistant↵\n⟦yes<|im_end|>⟧↵\n")
    assert as_text(pieces, ASCII).endswith("assistant\\n\n[[yes<|im_end|>]]\\n\n")


def test_colours_end_with_every_line(chatml: Any) -> None:
    text = as_text(pieces_of(example(chatml, TEXT, "yes<|im_end|>"), chatml), COLOUR)
    assert "\n\x1b[32myes\x1b[0m\x1b[32m\x1b[1m<|im_end|>\x1b[0m" in text
    assert all(line.startswith("\x1b[") and line.endswith("\x1b[0m") for line in text.splitlines() if line)


def test_a_row_cannot_move_the_cursor() -> None:
    assert as_text([Piece("a\x1b[2Jb\r", (1,), False, False)], PLAIN) == "a?[2Jb?"


@pytest.mark.parametrize(
    ("lengths", "expected"), [([4, 4], "####===="), ([2, 1, 1], "##=#...."), ([8], "########"), ([16], "########")]
)
def test_bars_show_documents_to_scale(lengths: list[int], expected: str) -> None:
    assert bar(lengths, 8, 8, ASCII) == expected


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 80))
def test_bars_fill_their_width(lengths: list[int], width: int) -> None:
    assert len(bar(lengths, 100, width, ASCII)) == width
