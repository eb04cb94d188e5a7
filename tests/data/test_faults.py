"""Faults of rows, tokens and packing that other tools were reported for: one test each, named by the fault's id.

The ids are those of faults.jsonl in the corpus. Faults of the model side (new embedding rows, ties, attention) are
tested in tests/model/test_faults_model.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from ftkit import catalog
from ftkit.data.batch import collate
from ftkit.data.order import StepPlan, evaluation_batches
from ftkit.data.packing import pack
from ftkit.data.prepare import Prepared, prepare
from ftkit.data.values import IGNORED, Example
from ftkit.errors import DataError
from ftkit.recipe import check_recipe
from ftkit.recipe.section.data import DataSection, DatasetSection

Turns = Sequence[tuple[str, str | None]]
H, G, S = "human", "gpt", "system"
BASE: list[Turns] = [
    [(S, "Be brief."), (H, "2+2?"), (G, "4")],
    [(H, "Say hi"), (G, "hi"), (H, "Again"), (G, "hi again")],
]


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf8")
    return path


def talk(*turns: tuple[str, str | None]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


def talks(path: Path, conversations: Sequence[Turns]) -> Path:
    return write(path, [talk(*turns) for turns in conversations])


def prepared(path: Path, tokenizer: Any, **keys: Any) -> Prepared:
    own = {key: value for key, value in keys.items() if key not in DataSection.model_fields}
    rest = {"chat_template": "chatml"} | {key: value for key, value in keys.items() if key not in own}
    dataset = DatasetSection(**{"path": str(path), "type": "sharegpt", **own})
    data = DataSection(**{"datasets": (dataset,), "sequence_len": 2048, **rest})
    return prepare(data, tokenizer, cache_dir=None, sequence_len=data.sequence_len, seed=7)


def spans(tokenizer: Any, example: Example) -> list[str]:
    """Every run of trained tokens, decoded."""
    is_trained = example.labels != IGNORED
    borders = np.flatnonzero(np.diff(is_trained, prepend=False, append=False))
    return [tokenizer.decode(example.input_ids[a:b]) for a, b in borders.reshape(-1, 2)]


def refused(*args: Any, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        prepared(*args, **keys)
    return str(caught.value)


def dropped(result: Prepared) -> dict[str, int]:
    return result.report.train.sets[0].dropped


def test_row_01_a_conversation_may_open_with_the_assistant(tmp_path: Path, chatml: Any) -> None:
    path = talks(tmp_path / "data.jsonl", [[(G, "Hello, how can I help?"), (H, "2+2?"), (G, "4")]])
    assert spans(chatml, prepared(path, chatml).train[0]) == ["Hello, how can I help?<|im_end|>", "4<|im_end|>"]


def test_row_04_null_and_missing_texts_are_counted_and_never_become_words(tmp_path: Path, chatml: Any) -> None:
    rows = [
        talk((H, ""), (G, "ok")),
        talk((H, "hi"), (G, None)),
        {"conversations": [{"from": H, "value": "hi"}, {"from": G}]},
        {"conversations": []},
        {"conversations": None},
        talk((H, "  \n"), (G, "ok")),
        talk((H, "empty?"), (G, "")),
    ]
    result = prepared(write(tmp_path / "data.jsonl", rows), chatml, bad_rows="skip")
    assert dropped(result) == {"bad row": 4}
    texts = [chatml.decode(example.input_ids) for example in result.train]
    assert not any("None" in text or "null" in text for text in texts)
    assert [spans(chatml, example) for example in result.train] == [["ok<|im_end|>"], ["ok<|im_end|>"], ["<|im_end|>"]]
    assert texts[0].startswith("<|im_start|>user\n<|im_end|>\n")


def test_row_05_system_turns_stay_where_they_stand(tmp_path: Path, chatml: Any) -> None:
    rows: list[Turns] = [
        [(S, "S1"), (H, "a"), (G, "b")],
        [(S, "S1"), (H, "a"), (G, "b"), (S, "S2"), (H, "c"), (G, "d")],
    ]
    path = talks(tmp_path / "data.jsonl", rows)
    result = prepared(path, chatml, default_system_message="Default.")
    texts = [chatml.decode(example.input_ids) for example in result.train]
    assert [text.count("<|im_start|>system") for text in texts] == [1, 2]
    assert texts[1].index("b<|im_end|>") < texts[1].index("system\nS2") < texts[1].index("user\nc")
    assert "Default." not in "".join(texts)
    assert spans(chatml, result.train[1]) == ["b<|im_end|>", "d<|im_end|>"]


def test_row_06_a_trailing_user_turn_is_masked_and_nothing_is_opened(tmp_path: Path, chatml: Any) -> None:
    path = talks(tmp_path / "data.jsonl", [[(H, "a"), (G, "b"), (H, "c")], [(H, "only me")]])
    result = prepared(path, chatml)
    assert spans(chatml, result.train[0]) == ["b<|im_end|>"]
    assert chatml.decode(result.train[0].input_ids).endswith("user\nc<|im_end|>\n")
    assert dropped(result) == {"nothing to train on": 1}
    alone = talks(tmp_path / "alone.jsonl", [[(H, "only me")]])
    assert "none of the 1 rows can be trained on (1 nothing to train on" in refused(alone, chatml)


@pytest.mark.parametrize(
    ("row", "found", "mapping"),
    [
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "messages",
            {"field_messages": "messages", "message_field_role": "role", "message_field_content": "content"},
        ),
        (
            {"conversation": talk((H, "a"), (G, "b"))["conversations"]},
            "conversation",
            {"field_messages": "conversation"},
        ),
        ({"prompt": "a", "response": "b"}, "prompt, response", None),
    ],
    ids=["messages", "conversation", "prompt"],
)
def test_row_07_other_columns_are_named_at_once_and_can_be_mapped(
    row: dict[str, Any], found: str, mapping: dict[str, str] | None, tmp_path: Path, chatml: Any
) -> None:
    path, start = write(tmp_path / "data.jsonl", [row]), time.monotonic()
    message = refused(path, chatml)
    assert time.monotonic() - start < 1
    assert f"{path}:1: the row has no column 'conversations'" in message
    assert all(name in message for name in found.split(", "))
    if mapping:
        twin = talks(tmp_path / "twin.jsonl", [[(H, "a"), (G, "b")]])
        ours, theirs = prepared(path, chatml, **mapping).train[0], prepared(twin, chatml).train[0]
        assert ours.input_ids.tolist() == theirs.input_ids.tolist()
        assert ours.labels.tolist() == theirs.labels.tolist()


def test_row_09_text_stays_text_whatever_other_rows_hold(tmp_path: Path, chatml: Any) -> None:
    texts = ["007", "true", '{"a": 1}', "1e5"]
    rows = [talk((H, "q"), (G, text)) for text in texts]
    odd = {"conversations": [{"from": H, "value": "n?"}, {"from": G, "value": 5}]}
    plain = prepared(write(tmp_path / "a.jsonl", rows), chatml)
    mixed = prepared(write(tmp_path / "b.jsonl", [odd, *reversed(rows)]), chatml, bad_rows="skip")
    assert [spans(chatml, example) for example in plain.train] == [[f"{text}<|im_end|>"] for text in texts]
    assert [e.input_ids.tolist() for e in reversed(list(mixed.train))] == [e.input_ids.tolist() for e in plain.train]
    assert f"{tmp_path}/b.jsonl:1: " in refused(tmp_path / "b.jsonl", chatml)


def test_row_10_arrays_and_lines_are_told_apart_by_content(
    tmp_path: Path, chatml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [talk(*turns) for turns in BASE]
    lines = write(tmp_path / "lines.jsonl", rows)
    (tmp_path / "array.jsonl").write_text(json.dumps(rows), encoding="utf8")
    (tmp_path / "pretty.json").write_text(json.dumps(rows, indent=2), encoding="utf8")
    wanted = [example.input_ids.tolist() for example in prepared(lines, chatml).train]
    for name in ("array.jsonl", "pretty.json"):
        assert [example.input_ids.tolist() for example in prepared(tmp_path / name, chatml).train] == wanted
    (tmp_path / "bad.jsonl").write_text('[[{"from": "human", "value": "a"}]]', encoding="utf8")
    assert "a row must be a JSON object, got an array" in refused(tmp_path / "bad.jsonl", chatml)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert f"file not found, got {tmp_path}/absent.jsonl" in refused(tmp_path / "absent.jsonl", chatml)


def test_row_11_bom_crlf_and_blank_tails_change_no_text(tmp_path: Path, chatml: Any) -> None:
    """The locale's part is in tests/data/sources/test_sources.py: files are read alike under any locale."""
    row = talk((H, "naïve 👩‍🚀 ﷽ 你好"), (G, "é ≠ é\t\u200b!"))
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row, ensure_ascii=False).encode() + b"\r\n\r\n  \r\n")
    (example,) = prepared(path, chatml).train
    assert spans(chatml, example) == ["é ≠ é\t\u200b!<|im_end|>"]
    path.write_text('{"conversations":[{"from":"human","value":"\\ud83d"},{"from":"gpt","value":"x"}]}\n', "utf8")
    assert refused(path, chatml).startswith(f"{path}:1: ")


def test_row_12_long_rows_are_dropped_or_really_cut(tmp_path: Path, chatml: Any) -> None:
    rows: list[Turns] = [[(H, "w " * 60), (G, "x")], [(H, "a"), (G, "y " * 60)], [(H, "a"), (G, "b")]]
    path = talks(tmp_path / "data.jsonl", rows)
    result = prepared(path, chatml, sequence_len=24)
    assert (len(result.train), dropped(result)) == (1, {"longer than sequence_len": 2})
    cut = prepared(path, chatml, sequence_len=24, excess_length_strategy="truncate")
    assert dropped(cut) == {"nothing to train on within sequence_len": 1}
    assert [len(example.input_ids) for example in cut.train] == [len(example.labels) for example in cut.train]
    assert max(cut.train.lengths) == 24
    message = refused(talks(tmp_path / "long.jsonl", rows[:2]), chatml, sequence_len=16)
    assert "none of the 2 rows can be trained on (2 longer than sequence_len; longest row 1" in message


def test_row_13_alpaca_without_input_takes_one_prompt_and_needs_an_output(tmp_path: Path, chatml: Any) -> None:
    ask = {"instruction": "Say hi"}
    rows = [{**ask, "output": "hi"}, {**ask, "input": None, "output": "hi"}, {**ask, "input": "", "output": "hi"}, ask]
    path = write(tmp_path / "data.jsonl", rows)
    result = prepared(path, chatml, type="alpaca", bad_rows="skip")
    assert len({tuple(example.input_ids.tolist()) for example in result.train}) == 1
    assert len(result.train) == 3
    assert [row.where for row in result.report.train.rejected] == [f"{path}:4"]


def test_row_16_the_split_depends_on_data_and_seed_only(tmp_path: Path, chatml: Any, monkeypatch: Any) -> None:
    """Two real processes: test_prepare.test_two_processes_prepare_once_and_split_alike."""
    path = talks(tmp_path / "data.jsonl", BASE * 10)
    lines = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        result = prepared(path, chatml, val_set_size=0.3)
        assert result.evaluation is not None
        train, held = ([example.where.line for example in part] for part in (result.train, result.evaluation))
        assert set(train).isdisjoint(held)
        assert len(train) + len(held) == 20
        lines.append((train, held))
    assert lines[0] == lines[1]


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OPENED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.mark.parametrize("post_processor", [False, True])
@pytest.mark.parametrize("in_template", [False, True])
def test_tok_01_there_is_at_most_one_bos_and_it_is_first(
    in_template: bool, post_processor: bool, tmp_path: Path, bare_folder: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bare_folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    if post_processor:
        bos = ("<s>", tokenizer.bos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[bos])
    template = ("{{ bos_token }}" if in_template else "") + CHATML + OPENED
    chats = prepared(talks(tmp_path / "a.jsonl", BASE), tokenizer, chat_template="jinja", chat_template_jinja=template)
    plain = prepared(write(tmp_path / "b.jsonl", [{"text": "abc"}]), tokenizer, type="completion")
    for wanted, part in ((in_template, chats.train), (post_processor, plain.train)):
        for example in part:
            assert np.flatnonzero(example.input_ids == tokenizer.bos_token_id).tolist() == [0] * wanted


def test_tok_02_padding_equal_to_eos_hides_no_eos(tmp_path: Path, bare_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bare_folder)
    tokenizer.pad_token = tokenizer.eos_token
    rows = [{"instruction": "a", "output": "b"}, {"instruction": "a", "output": "b c d e f"}]
    store = prepared(write(tmp_path / "data.jsonl", rows), tokenizer, type="alpaca").train
    batch = collate(store, [0, 1], pad_to=int(store.lengths.sum()) + 5, pad_id=tokenizer.pad_token_id)
    ends = batch.cu_seqlens[1:3].long() - 1
    assert batch.labels[0, ends].tolist() == [tokenizer.eos_token_id] * 2
    assert batch.labels[0, -5:].tolist() == [IGNORED] * 5


@pytest.mark.parametrize("name", sorted({text: name for name, text in catalog.TEMPLATES.items()}.values()))
def test_tok_03_every_built_in_template_trains_the_end_of_a_turn(name: str, tmp_path: Path, chatml: Any) -> None:
    path = talks(tmp_path / "data.jsonl", [[(H, "Say hi"), (G, "hi"), (H, "Again"), (G, "hi again")]])
    result = prepared(path, chatml, chat_template=name)
    assert result.report.train.sets[0].ended == 1
    for span, answer in zip(spans(chatml, result.train[0]), ["hi", "hi again"], strict=True):
        end = span.strip().removeprefix(answer).strip()
        assert end
        assert end.startswith("<")
        assert end.endswith(">")


def test_tok_04_trained_tokens_decode_to_the_answers_and_their_ends(tmp_path: Path, any_tokenizer: Any) -> None:
    turns = [(role, f"{role} {n}") for n in range(1, 5) for role in (H, G)]
    path = talks(tmp_path / "data.jsonl", [turns[: 2 * n] for n in range(1, 5)])
    for count, example in enumerate(prepared(path, any_tokenizer).train, start=1):
        wanted = [f"gpt {n}<|im_end|>" for n in range(1, count + 1)]
        assert [span.lstrip() for span in spans(any_tokenizer, example)] == wanted
        is_trained = example.labels != IGNORED
        assert np.array_equal(example.labels[is_trained], example.input_ids[is_trained])


def test_tok_05_a_token_across_the_border_keeps_the_answers_first_letter(tmp_path: Path, any_tokenizer: Any) -> None:
    """The token `: f` itself: test_prepare.test_a_token_across_the_border_is_trained."""
    rows = [{"segments": [{"label": False, "text": "two plus two: "}, {"label": True, "text": "four"}]}]
    (example,) = prepared(write(tmp_path / "data.jsonl", rows), any_tokenizer, type="input_output").train
    whole = any_tokenizer("two plus two: four", add_special_tokens=False)["input_ids"]
    assert example.input_ids.tolist()[-len(whole) :] == whole
    assert "".join(spans(any_tokenizer, example)).endswith("four")


@pytest.mark.parametrize("packing", [False, True])
def test_tok_07_train_on_inputs_and_role_lists_have_their_effect(packing: bool, tmp_path: Path, chatml: Any) -> None:
    path = talks(tmp_path / "data.jsonl", BASE)

    def counts(**keys: Any) -> list[int]:
        result = prepared(path, chatml, sample_packing=packing, **keys)
        return [int((example.labels != IGNORED).sum()) for example in result.train]

    lengths = prepared(path, chatml).train.lengths
    assert counts(train_on_inputs=True) == (lengths - 1).tolist()  # nothing predicts a first token
    assert counts(roles_to_train=("gpt",)) == counts(roles_to_train=("assistant",)) == counts()
    assert "roles_to_train names no role of this data set, got robot" in refused(
        path, chatml, roles_to_train=("robot",)
    )


def test_tok_09_configured_tokens_are_one_id_before_any_row_and_after_saving(tmp_path: Path, bare_folder: Path) -> None:
    from ftkit.data.tokens import load_tokenizer
    from ftkit.recipe.section.tokens import SpecialTokens, TokenSection

    section = TokenSection(tokens=("<|im_start|>",), special_tokens=SpecialTokens(eos_token="<|im_end|>"))
    tokenizer = load_tokenizer(section, str(bare_folder), revision=None, trust_remote_code=False)
    (start, end) = (tokenizer.convert_tokens_to_ids(text) for text in ("<|im_start|>", "<|im_end|>"))
    example = prepared(talks(tmp_path / "data.jsonl", BASE), tokenizer).train[1]
    assert [int((example.input_ids == token).sum()) for token in (start, end)] == [4, 4]
    tokenizer.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again("<|im_start|>", add_special_tokens=False)["input_ids"] == [start]
    assert (
        example.input_ids.tolist() == again(tokenizer.decode(example.input_ids), add_special_tokens=False)["input_ids"]
    )


def test_tok_13_training_ids_are_those_of_inference(tmp_path: Path, any_tokenizer: Any) -> None:
    result = prepared(talks(tmp_path / "data.jsonl", BASE), any_tokenizer)
    roles = {S: "system", H: "user", G: "assistant"}
    for turns, example in zip(BASE, result.train, strict=True):
        messages = [{"role": roles[role], "content": text} for role, text in turns]
        ids = any_tokenizer.apply_chat_template(
            messages, chat_template=result.chat_template, tokenize=True, return_dict=False
        )
        assert example.input_ids.tolist() == ids


def test_tok_14_a_template_that_rewrites_earlier_turns_trains_no_user(tmp_path: Path, chatml: Any) -> None:
    template = CHATML.replace(
        "{{ m.content }}",
        "{{ m.content.split('</think>')[-1] if m.role == 'assistant' and not loop.last else m.content }}",
    )
    turns = [(H, "a"), (G, "<think>t</think>one"), (H, "b"), (G, "<think>u</think>two")]
    path = talks(tmp_path / "data.jsonl", [turns])
    result = prepared(path, chatml, chat_template="jinja", chat_template_jinja=template + OPENED)
    assert spans(chatml, result.train[0]) == ["one<|im_end|>", "<think>u</think>two<|im_end|>"]


def test_tok_15_rows_without_a_target_are_counted_with_the_cause(tmp_path: Path, chatml: Any) -> None:
    path = talks(tmp_path / "data.jsonl", [[(H, "w " * 40), (G, "ok")], [(H, "a"), (G, "y " * 40)]])
    result = prepared(path, chatml, sequence_len=20, excess_length_strategy="truncate")
    assert dropped(result) == {"nothing to train on within sequence_len": 1}
    (example,) = result.train
    assert spans(chatml, example)[0].startswith("y y")
    assert len(example.labels) == 20


def test_tok_16_a_tokenizer_without_bos_puts_nothing_there(tmp_path: Path, bare_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bare_folder)
    tokenizer.bos_token = None
    rows = [{"instruction": "Say hi", "output": "hi"}]
    for path, type_ in ((talks(tmp_path / "a.jsonl", BASE), "sharegpt"), (write(tmp_path / "b.jsonl", rows), "alpaca")):
        for example in prepared(path, tokenizer, type=type_).train:
            assert example.input_ids.dtype == np.int32
            assert 0 <= example.input_ids.min() <= example.input_ids.max() < len(tokenizer)
            assert "None" not in tokenizer.decode(example.input_ids)


def test_pak_03_positions_restart_in_every_document_and_in_padding(tmp_path: Path, chatml: Any) -> None:
    store = prepared(talks(tmp_path / "data.jsonl", BASE), chatml, sample_packing=True).train
    first, second = store.lengths.tolist()
    batch = collate(store, [0, 1], pad_to=first + second + 3, pad_id=chatml.pad_token_id)
    assert batch.position_ids[0].tolist() == [*range(first), *range(second), 0, 1, 2]
    assert batch.cu_seqlens.tolist() == [0, first, first + second, first + second + 3]


def test_pak_04_no_document_predicts_the_start_of_the_next(tmp_path: Path, chatml: Any) -> None:
    path = talks(tmp_path / "data.jsonl", BASE)
    store = prepared(path, chatml, sample_packing=True, train_on_inputs=True).train
    batch = collate(store, [0, 1], pad_to=None, pad_id=0)
    assert batch.labels[0, batch.cu_seqlens[:-1].long()].tolist() == [IGNORED, IGNORED]
    assert batch.num_target_tokens == int(store.lengths.sum()) - 2
    eos = chatml.convert_tokens_to_ids("<|im_end|>")
    assert all(eos in example.input_ids[-2:] for example in store)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=40), st.integers(1, 3), st.integers(1, 3))
def test_pak_05_every_rank_has_as_many_batches(lengths: list[int], size: int, accumulation: int) -> None:
    """Counted by each rank alone, without asking the others; two real processes: tests/parallel."""
    packs = pack(lengths, 64)
    plan = StepPlan(packs, size, accumulation, world_size=2)
    for step in range(plan.steps_per_epoch):
        assert len(plan.micro_batches(step, 0)) == len(plan.micro_batches(step, 1))
    held = [len(list(evaluation_batches(packs, size, 2, rank))) for rank in (0, 1)]
    assert held[0] == held[1]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_pak_07_the_smallest_data_set_makes_one_step(rows: int, tmp_path: Path, chatml: Any) -> None:
    path = talks(tmp_path / "data.jsonl", [BASE[0]] * rows)
    store = prepared(path, chatml, sample_packing=True, sequence_len=64).train
    plan = StepPlan(pack(store.lengths, 64), micro_batch_size=4, accumulation=8)
    assert plan.num_steps == 1
    assert sorted(plan.documents(0)) == list(range(rows))


@given(st.lists(st.sampled_from([1, 2, 5, 15, 16]), min_size=1, max_size=60))
def test_pak_09_every_document_is_packed_once(lengths: list[int]) -> None:
    packs = pack(lengths, 16)
    assert sorted(i for members in packs for i in members) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in members) <= 16 for members in packs)


def test_pak_09_long_rows_follow_the_length_rule_before_packing(tmp_path: Path, chatml: Any) -> None:
    path = talks(tmp_path / "data.jsonl", [[(H, "w " * 60), (G, "x")], [(H, "a"), (G, "b")]])
    store = prepared(path, chatml, sample_packing=True, sequence_len=32).train
    assert [list(members) for members in pack(store.lengths, 32)] == [[0]]
    with pytest.raises(DataError, match="document 0 is longer than a pack of 32 tokens, got 96"):
        pack([96], 32)


def test_pak_10_length_groups_and_packing_are_refused_together(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(
        "base_model: ./tiny\ndatasets: [{path: data.jsonl, type: sharegpt}]\nchat_template: chatml\n"
        "sample_packing: true\ngroup_by_length: true\n"
    )
    _, problems = check_recipe(str(recipe))
    assert "packing-with-group-by-length" in [problem.code for problem in problems if problem.severity == "error"]


def test_every_fault_has_a_test_of_its_name(corpus: Path, root: Path) -> None:
    lines = (corpus / "faults" / "faults.jsonl").read_text(encoding="utf8").splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    wanted = [fault.lower().replace("-", "_") for fault in ids if fault[:4] in ("ROW-", "TOK-", "PAK-")]
    files = [Path(__file__), root / "tests" / "model" / "test_faults_model.py"]
    texts = "".join(file.read_text(encoding="utf8") for file in files)
    assert len(wanted) > 30
    assert [fault for fault in wanted if f"def test_{fault}_" not in texts] == []
