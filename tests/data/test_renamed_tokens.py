from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ftkit.data.tokens import add_tokens, read_tokenizer
from ftkit.errors import DataError
from ftkit.recipe.section.frozen import FrozenMap
from ftkit.recipe.section.tokens import TokenSection
from tiny import byte_tokenizer


def renamed(folder: Path, texts: dict[str, str]) -> Any:
    tokens = TokenSection(added_tokens_overrides=FrozenMap(texts))
    return read_tokenizer(tokens, str(folder), revision=None, trust_remote_code=False)


def test_a_reserved_token_gets_another_text_at_its_id(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    before, after = AutoTokenizer.from_pretrained(tmp_path), renamed(tmp_path, {"1": "<think>", "2": "<end>"})
    assert after.convert_tokens_to_ids(["<think>", "<end>"]) == [1, 2]
    assert len(after) == len(before)
    assert after("a<think>b", add_special_tokens=False)["input_ids"][1] == 1
    assert after("plain text")["input_ids"] == before("plain text")["input_ids"]
    assert len(after("<|im_start|>", add_special_tokens=False)["input_ids"]) > 1
    assert after.eos_token == "<end>", "the EOS that is renamed is EOS still"
    after.save_pretrained(tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("<think>")["input_ids"] == after("<think>")["input_ids"]


def test_a_renamed_token_is_no_new_id(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    tokens = TokenSection(added_tokens_overrides=FrozenMap({"1": "<think>"}), tokens=("<think>",))
    tokenizer = read_tokenizer(tokens, str(tmp_path), revision=None, trust_remote_code=False)
    added = add_tokens(tokenizer, tokens)
    assert (added.added, added.renamed) == ({}, (1,))


@pytest.mark.parametrize("model", ["minimind", "mistral_v1", "gpt2"])
def test_published_tokenizers_can_be_renamed(corpus: Path, model: str) -> None:
    folder = corpus / "tokenizers" / model
    if not folder.is_dir():
        pytest.skip(f"no tokenizer {model} in the corpus")
    kind = "GPT2Tokenizer" if model == "gpt2" else None
    tokens = TokenSection(tokenizer_type=kind)
    before = read_tokenizer(tokens, str(folder), revision=None, trust_remote_code=False)
    number = max(before.added_tokens_decoder)
    tokens = TokenSection(tokenizer_type=kind, added_tokens_overrides=FrozenMap({str(number): "<zork>"}))
    after = read_tokenizer(tokens, str(folder), revision=None, trust_remote_code=False)
    assert after.convert_tokens_to_ids("<zork>") == number
    assert len(after) == len(before)
    assert after("hello world")["input_ids"] == before("hello world")["input_ids"]


@pytest.mark.parametrize("texts", [{"40": "<x>"}, {"1": "<pad>"}, {"one": "<x>"}, {"1": "<x>", "2": "<x>"}], ids=str)
def test_what_cannot_be_renamed_is_refused(tmp_path: Path, texts: dict[str, str]) -> None:
    byte_tokenizer(tmp_path)
    with pytest.raises(DataError, match="these tokens cannot have another text") as caught:
        renamed(tmp_path, texts)
    assert caught.value.where == "added_tokens_overrides"
    assert caught.value.help == "give ids of added tokens (0 to 3), each a text of its own"
