"""Every data file of the corpus, by the type it is made for, under many templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftkit.data.prepare import Prepared, prepare
from ftkit.data.values import IGNORED
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection

LINKED = {"field_messages": "conversation"}
SQL = {
    "field_instruction": "question",
    "field_input": "context",
    "field_output": "answer",
    "format": "{input} {instruction} ",
}
SETS: dict[str, dict[str, Any]] = {
    "alpaca_en_llamafactory.json": {"type": "alpaca"},
    "alpaca_zh_llamafactory.json": {"type": "alpaca:chatml"},
    "alpaca_identity_placeholders.json": {"type": "alpaca"},
    "alpaca_litgpt.json": {"type": "alpaca:chat"},
    "alpaca_tiny_torchtune.json": {"type": "alpaca:phi"},
    "axolotl_alpaca.json": {"type": "alpaca"},
    "longform_litgpt.json": {"type": "alpaca", "field_instruction": "input", "field_input": "none"},
    "hong_lou_meng_instruction.parquet": {"type": "alpaca"},
    "swift_alpaca.csv": {"type": "alpaca"},
    "completion_fever_en.txt": {"type": "completion"},
    "modal_docs_completion.jsonl": {"type": "completion"},
    "modal_sqlqa_custom_fields.jsonl": {"type": SQL},
    "grpo_zh_sample.jsonl": {"type": "alpaca_chat.load_qa"},
    "magpie_multi_response.json": {"type": "completion", "field": "instruction"},
    "kodcode_complete.json": {"type": "query_response", "field_instruction": "instruction"},
    "fastchat_dummy_conversation.json": {"type": "sharegpt"},
    "augmentoolkit_grabbag_sharegpt.jsonl": {"type": "sharegpt"},
    "medical_sft_zh.jsonl": {"type": "sharegpt"},
    "sharegpt_zh_medicalgpt.jsonl": {"type": "sharegpt"},
    "toolcall_en_glaive.json": {"type": "sharegpt", "template": "trl__qwen2_5_training"},
    "toolcall_zh_glaive.json": {"type": "sharegpt", "template": "trl__qwen2_5_training"},
    "swift_sharegpt_pairs.jsonl": {"type": "sharegpt", **LINKED},
    "kto_en_messages.json": {"type": "chat_template"},
    "v1_dpo_chosen_messages.jsonl": {"type": "chat_template", "field_messages": "chosen_messages"},
    "reason_tool_use_content_parts.jsonl": {"type": "chat_template", "template": "trl__qwen3_training"},
    "oasst_en_100_messages.jsonl": {"type": "oasst"},
    "oasst_realistic_seed.json": {"type": "oasst"},
    "dpo_en_sharegpt.json": {"type": "sharegpt"},  # the chosen answer apart: only earlier turns are trained
    "toolcall_dpo_zh.jsonl": {"type": "sharegpt", "template": "trl__qwen2_5_training"},
}
# Files that hold no rows to fine-tune on as they stand: each refused with a way on.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ms_swift_math_rft.json": ({"type": "alpaca"}, "write its rows one a line: jq -c '.[]'"),
    "roleplay_nurse_zh.jsonl": ({"type": "sharegpt"}, "to train on that text: type: completion, field: system_prompt"),
    "mllm_images.json": ({"type": "chat_template"}, "the row has images, and only text can be trained on"),
    "dpo_zh_sharegpt.json": ({"type": "sharegpt"}, "put the chosen answer behind the turns of its row"),
}
# What a template may be refused with for a whole set: each row, or that no row would teach the model to stop.
FOR_ALL_ROWS = ("none of the", "no end-of-turn token follows a trained turn")
CHATS = [
    name for name, keys in SETS.items() if keys["type"] in ("sharegpt", "chat_template", "oasst", "query_response")
]


def prepared(path: Path, tokenizer: Any, template: str | None, bad_rows: str = "error", **keys: Any) -> Prepared:
    dataset = DatasetSection(path=str(path), **keys)
    inline = {"chat_template": "jinja", "chat_template_jinja": template} if template else {"chat_template": "chatml"}
    data = DataSection(**{"datasets": (dataset,), "bad_rows": bad_rows, **inline})
    return prepare(data, tokenizer, cache_dir=None, sequence_len=1 << 20, seed=1)


def test_every_file_is_here(corpus: Path) -> None:
    files = {line.split("\t")[0] for line in (corpus / "data" / "manifest.tsv").read_text("utf8").splitlines()[1:]}
    assert files == SETS.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", SETS)
def test_a_file_prepares_with_every_row_accounted_for(name: str, corpus: Path, chatml: Any) -> None:
    keys = dict(SETS[name])
    template = keys.pop("template", None)
    text = (corpus / "chat_templates" / f"{template}.jinja").read_text("utf8") if template else None
    result = prepared(corpus / "data" / name, chatml, text, **keys)
    (account,) = result.report.train.sets
    assert account.rows == account.documents + sum(account.dropped.values())
    assert account.documents == len(result.train)
    counted = sum(int((example.labels != IGNORED).sum()) for example in result.train)
    assert counted == sum(account.trained_tokens.values()) > 0
    assert account.allowed == {}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_used_says_what_to_do(name: str, corpus: Path, chatml: Any) -> None:
    keys, message = REFUSED[name]
    with pytest.raises(DataError) as caught:
        prepared(corpus / "data" / name, chatml, None, **keys)
    assert message in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHATS)
def test_chats_prepare_under_every_template(name: str, corpus: Path, chatml: Any) -> None:
    keys = {key: value for key, value in SETS[name].items() if key != "template"}
    num_templates = num_proven = 0
    for file in sorted((corpus / "chat_templates").glob("*.jinja")):
        try:
            result = prepared(
                corpus / "data" / name, chatml, file.read_text("utf8"), "skip", split="train[:25]", **keys
            )
        except DataError as refused:
            assert refused.what.startswith(FOR_ALL_ROWS), (file.name, refused)  # noqa: PT017
            continue
        num_templates += 1
        (account,) = result.report.train.sets
        assert account.rows == account.documents + sum(account.dropped.values())
        num_proven += not any(reason.startswith("breaks") for reason in account.dropped)
        for example in result.train:
            is_trained = example.labels != IGNORED
            assert is_trained.any()
            assert not is_trained[0]
            assert np.array_equal(example.labels[is_trained], example.input_ids[is_trained])
        bos = [int((example.input_ids[:2] == chatml.bos_token_id).sum()) for example in result.train]
        assert max(bos) <= 1, file.name
    assert num_templates >= num_proven >= 20
