"""Tokenizers for the tests of the data path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ftkit.data.tokens import load_tokenizer
from ftkit.recipe.section.tokens import SpecialTokens, TokenSection

LINES = [
    "Hello, how can I help you today?",
    "Below is an instruction that describes a task.",
    "user assistant system\nThe quick brown fox: four, five.",
    "naïve 你好 👩‍🚀",
]


def byte_level(specials: list[str], **roles: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on a few lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


@pytest.fixture(scope="session")
def chatml() -> Any:
    """Byte-level BPE that knows the ChatML markers."""
    return byte_level(
        ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"],
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
    )


@pytest.fixture(scope="session")
def bare_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer that knows no chat markers and no pad token."""
    folder = tmp_path_factory.mktemp("bare")
    byte_level(["<s>", "</s>"], bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=["byte_level", "minimind", "mistral_v1", "chinese_llama_alpaca"])
def any_tokenizer(request: pytest.FixtureRequest) -> Any:
    """Byte-level and sentencepiece tokenizers, each with the ChatML markers added."""
    if request.param == "byte_level":
        return request.getfixturevalue("chatml")
    folder = request.getfixturevalue("corpus") / "tokenizers" / request.param
    section = TokenSection(tokens=("<|im_start|>",), special_tokens=SpecialTokens(eos_token="<|im_end|>"))
    return load_tokenizer(section, str(folder), revision=None, trust_remote_code=False)
