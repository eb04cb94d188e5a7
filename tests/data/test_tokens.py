from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ftkit.data.tokens import load_tokenizer
from ftkit.errors import DataError
from ftkit.recipe.section.tokens import SpecialTokens, TokenSection


def loaded(folder: Path | str, **keys: Any) -> Any:
    return load_tokenizer(TokenSection(**keys), str(folder), revision=None, trust_remote_code=False)


def test_configured_tokens_are_one_id_each_and_stay_so_when_saved(bare_folder: Path, tmp_path: Path) -> None:
    tokenizer = loaded(bare_folder, tokens=("<|im_start|>",), special_tokens=SpecialTokens(eos_token="<|im_end|>"))
    text = "<|im_start|>user\nhi<|im_end|>\n"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert tokenizer.eos_token_id in ids
    assert tokenizer.decode(ids) == text
    tokenizer.save_pretrained(tmp_path)
    assert loaded(tmp_path)(text, add_special_tokens=False)["input_ids"] == ids


def test_a_token_that_exists_adds_no_id(bare_folder: Path) -> None:
    assert len(loaded(bare_folder, tokens=("<s>",))) == len(loaded(bare_folder))


def test_further_special_tokens_are_added(bare_folder: Path) -> None:
    tokenizer = loaded(bare_folder, special_tokens=SpecialTokens(additional_special_tokens=("<a>", "<b>")))
    assert len(tokenizer("<a><b>", add_special_tokens=False)["input_ids"]) == 2
    assert tokenizer.bos_token == "<s>"


def test_a_tokenizer_class_of_another_model_does_not_change_the_rules(bare_folder: Path) -> None:
    """LlamaTokenizer over a byte-level tokenizer.json would tokenize by sentencepiece's rules (transformers 5.24)."""
    text = "Hello, how are you?"
    assert loaded(bare_folder, tokenizer_type="LlamaTokenizer")(text) == loaded(bare_folder)(text)


def test_a_folder_that_does_not_say_its_class_takes_the_recipes(corpus: Path) -> None:
    tokenizer = loaded(corpus / "tokenizers" / "gpt2", tokenizer_type="GPT2Tokenizer")
    assert tokenizer("hello world")["input_ids"] == [31373, 995]  # published GPT-2 ids


def test_pad_is_not_eos_where_the_vocabulary_has_another(corpus: Path) -> None:
    tokenizer = loaded(corpus / "tokenizers" / "mistral_v1", special_tokens=SpecialTokens(eos_token="</s>"))
    assert tokenizer.pad_token_id is not None
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert len(tokenizer) == 32000


def test_pad_falls_back_on_eos_without_adding_an_id(bare_folder: Path) -> None:
    tokenizer = loaded(bare_folder)
    assert tokenizer.pad_token == "</s>"
    assert len(tokenizer) == len(loaded(bare_folder, special_tokens=SpecialTokens(pad_token="</s>")))


def test_a_named_pad_token_is_taken(bare_folder: Path) -> None:
    assert loaded(bare_folder, special_tokens=SpecialTokens(pad_token="<pad>")).pad_token == "<pad>"


def test_no_possible_pad_is_refused(tmp_path: Path, bare_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bare_folder)
    tokenizer.eos_token = tokenizer.bos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(DataError) as caught:
        loaded(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: the tokenizer has no token that can serve as padding\n"
        'help: name one: special_tokens: {pad_token: "..."}'
    )


def test_no_tokenizer_and_an_unknown_class_are_refused(tmp_path: Path, bare_folder: Path) -> None:
    with pytest.raises(DataError, match="no tokenizer can be loaded"):
        loaded(tmp_path)
    with pytest.raises(DataError, match="transformers has no tokenizer class of this name, got NopeTokenizer"):
        loaded(bare_folder, tokenizer_type="NopeTokenizer")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "tokenizer.json",
            '{"model": {"type": "Zork", "vocab": {}}, "added_tokens": []}',
            "no tokenizer can be loaded",
        ),
        ("tokenizer.json", "[]", "no tokenizer can be loaded"),
        ("tokenizer.json", "{}", r"no tokenizer can be loaded \('added_tokens'"),
        ("tokenizer_config.json", '{"tokenizer_class": 3}', "no tokenizer can be loaded"),
        (
            "tokenizer.json",
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            r"\nhelp: run `git lfs pull` in that folder: git-lfs pointers stand in place of tokenizer\.json",
        ),
    ],
    ids=["unknown model", "list", "empty mapping", "class of the wrong kind", "pointer"],
)
def test_a_broken_tokenizer_is_clear(bare_folder: Path, tmp_path: Path, file: str, text: str, said: str) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(bare_folder, folder)
    (folder / file).write_text(text)
    with pytest.raises(DataError, match=said) as caught:
        loaded(folder)
    assert caught.value.where == str(folder)
    assert caught.value.help


def test_a_silent_hub_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(
        DataError, match=r"someone/absent: no tokenizer .*offline: http://127\.0\.0\.1:9 does not answer"
    ):
        loaded("someone/absent")
    assert time.monotonic() - start < 5
