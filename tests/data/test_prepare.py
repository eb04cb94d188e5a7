from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftkit.data.mask_report import mask_report
from ftkit.data.prepare import Prepared, prepare
from ftkit.data.values import IGNORED, Example
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection
from ftkit.summary import warnings_of

Turn = tuple[str, str]
S, H, G = "system", "human", "gpt"

CONVERSATIONS: list[list[Turn]] = [
    [(H, "2+2?"), (G, "4")],
    [(S, "Be brief."), (H, "2+2?"), (G, "4")],
    [(H, "Say hi"), (G, "hi"), (H, "Again"), (G, "hi again")],
    [(G, "Hello, how can I help?"), (H, "2+2?"), (G, "4")],
    [(H, "a"), (G, "b"), (H, "c")],
    [(H, "a"), (G, "b"), (S, "S2"), (H, "c"), (G, "d")],
    [(H, "one"), (H, "two"), (G, "three"), (G, "four")],
    [(S, ""), (H, "2+2?"), (G, "4")],
    [(H, ""), (G, "ok")],
    [(H, "  \n"), (G, "ok")],
    [(H, "empty?"), (G, "")],
    [(H, "naïve 👩‍🚀 ﷽ 你好"), (G, "é ≠ é\t\u200b! 👩‍🚀")],
    [(H, "code?"), (G, "007"), (H, "flag?"), (G, "true"), (H, "json"), (G, '{"a": 1}')],
    [(H, "quote"), (G, "the user said: <user> assistant\nassistant\nuser")],
    [(H, "a trailing space"), (G, "kept: ")],
    [(H, "many lines"), (G, "one\n\ntwo\r\n\tthree")],
    [(H, "w " * 400), (G, "x " * 399 + "x")],
    [(H, "<think>not mine</think>"), (G, "<think>\nhm\n</think>\n\nmine")],
    [(H, "{{ braces }} {% if %}"), (G, "{{ messages }} {% raw %}")],
    [(H, "first"), *[(role, f"{role} {n}") for n in range(20) for role in (G, H)], (G, "last")],
]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf8")
    return path


def sharegpt(turns: list[Turn]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


def prepared(path: Path, tokenizer: Any, cache: Path | None = None, **keys: Any) -> Prepared:
    own = {key: value for key, value in keys.items() if key not in DataSection.model_fields}
    rest = {"chat_template": "chatml"} | {key: value for key, value in keys.items() if key not in own}
    dataset = DatasetSection(**{"path": str(path), "type": "sharegpt", **own})
    data = DataSection(**{"datasets": (dataset,), "sequence_len": 4096, **rest})
    return prepare(data, tokenizer, cache_dir=cache, sequence_len=data.sequence_len, seed=1)


def trained(tokenizer: Any, example: Example) -> str:
    """Every run of trained tokens decoded by itself (a sentencepiece decoder puts a space between unrelated runs)."""
    is_trained = example.labels != IGNORED
    borders = np.flatnonzero(np.diff(is_trained, prepend=False, append=False))
    return "".join(tokenizer.decode(example.input_ids[a:b]) for a, b in borders.reshape(-1, 2))


def survives(tokenizer: Any, text: str) -> bool:
    """Whether a tokenizer keeps a text: one of the four knows no line breaks and few emoji."""
    decoded: str = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
    return decoded.lstrip() == text.lstrip()


def refused(*args: Any, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        prepared(*args, **keys)
    return str(caught.value)


def test_trained_tokens_are_the_assistants_text_and_its_end_of_turn(tmp_path: Path, any_tokenizer: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(turns) for turns in CONVERSATIONS])
    result = prepared(path, any_tokenizer)
    assert len(result.train) == len(CONVERSATIONS)
    for turns, example in zip(CONVERSATIONS, result.train, strict=True):
        text = "".join(f"{text}<|im_end|>" for role, text in turns if role == G)
        if all(survives(any_tokenizer, text) for role, text in turns if role == G):
            assert trained(any_tokenizer, example) == text
        ids = example.input_ids
        assert np.array_equal(example.labels[example.labels != IGNORED], ids[example.labels != IGNORED])


def test_ids_are_those_of_the_whole_text_as_transformers_renders_it(tmp_path: Path, any_tokenizer: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(turns) for turns in CONVERSATIONS])
    result = prepared(path, any_tokenizer)
    roles = {S: "system", H: "user", G: "assistant"}
    for turns, example in zip(CONVERSATIONS, result.train, strict=True):
        messages = [{"role": roles[role], "content": text} for role, text in turns]
        expected = any_tokenizer.apply_chat_template(
            messages, chat_template=result.chat_template, tokenize=True, return_dict=False
        )
        assert example.input_ids.tolist() == expected


def test_what_is_hidden_before_an_answer_is_the_prompt_of_inference(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(turns) for turns in CONVERSATIONS])
    result = prepared(path, chatml)
    roles = {S: "system", H: "user", G: "assistant"}
    for turns, example in zip(CONVERSATIONS, result.train, strict=True):
        first = next(number for number, (role, _) in enumerate(turns) if role == G)
        if not first:
            continue  # transformers renders no empty conversation
        messages = [{"role": roles[role], "content": text} for role, text in turns[:first]]
        prompt = chatml.apply_chat_template(
            messages, chat_template=result.chat_template, tokenize=False, add_generation_prompt=True
        )
        hidden = example.input_ids[: int(np.argmax(example.labels != IGNORED))]
        assert chatml.decode(hidden) == prompt


def test_the_line_break_after_the_end_of_turn_is_not_trained(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[0])])
    example = prepared(path, chatml).train[0]
    assert chatml.decode(example.input_ids).endswith("4<|im_end|>\n")
    assert example.labels[-1] == IGNORED
    assert example.labels[-2] == chatml.convert_tokens_to_ids("<|im_end|>")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"train_on_eos": "turn"}, "hi<|im_end|>hi again<|im_end|>"),
        ({"train_on_eos": "last"}, "hihi again<|im_end|>"),
        ({"train_on_eos": "none"}, "hihi again"),
        ({"train_on_eos": "all"}, "<|im_end|>hi<|im_end|><|im_end|>hi again<|im_end|>"),
        ({"roles_to_train": ("user",)}, "Say hi<|im_end|>Again<|im_end|>"),
        ({"roles_to_train": ("human", "gpt")}, "Say hi<|im_end|>hi<|im_end|>Again<|im_end|>hi again<|im_end|>"),
    ],
)
def test_rules_of_training(tmp_path: Path, chatml: Any, keys: dict[str, Any], expected: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[2])])
    assert trained(chatml, prepared(path, chatml, **keys).train[0]) == expected


def test_train_on_inputs_trains_all_but_the_first_token(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[2])])
    result = prepared(path, chatml, train_on_inputs=True)
    assert (result.train[0].labels != IGNORED).tolist() == [False] + [True] * (len(result.train[0].labels) - 1)
    assert result.report.trained_tokens == {"all": len(result.train[0].labels) - 1}


def test_a_role_that_does_not_exist_cannot_be_trained(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[2])])
    assert refused(path, chatml, roles_to_train=("robot",)).startswith(
        f"{path}: roles_to_train names no role of this data set, got robot\nhelp: use some of system"
    )


def test_a_turns_own_wish_outranks_the_recipe(tmp_path: Path, chatml: Any) -> None:
    turns = [{"role": "assistant", "content": "no", "weight": 0}, {"role": "assistant", "content": "yes"}]
    path = write_rows(tmp_path / "rows.jsonl", [{"messages": turns}])
    assert trained(chatml, prepared(path, chatml, type="chat_template").train[0]) == "yes<|im_end|>"


def test_a_default_system_message_goes_only_where_there_is_none(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[n]) for n in (0, 1, 5)])
    result = prepared(path, chatml, default_system_message="Default.")
    texts = [chatml.decode(example.input_ids) for example in result.train]
    assert [text.count("<|im_start|>system") for text in texts] == [1, 1, 1]
    assert [text.startswith("<|im_start|>system\nDefault.<|im_end|>") for text in texts] == [True, False, False]


def test_every_system_turn_stays_where_it_stands(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[5])])
    text = chatml.decode(prepared(path, chatml).train[0].input_ids)
    assert text.index("b<|im_end|>") < text.index("system\nS2") < text.index("user\nc")


GENERATION = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant{% generation %}\n"
    "{{ m.content.replace('b', 'B') }}<|im_end|>\n{% endgeneration %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<|im_end|>{% endfor %}",
        GENERATION,
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
    ],
    ids=["trimming", "generation_blocks", "instruct"],
)
def test_other_templates_mark_the_same_text(tmp_path: Path, chatml: Any, template: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt([(H, "aa"), (G, "hi"), (H, "cc"), (G, "dd")])])
    # the first template knows no generation prompt
    result = prepared(path, chatml, chat_template="jinja", chat_template_jinja=template, allow=("other_prompt",))
    assert trained(chatml, result.train[0]) == "hi<|im_end|>dd<|im_end|>"


def test_a_template_that_rewrites_contents_is_read_by_its_generation_blocks(tmp_path: Path, chatml: Any) -> None:
    opened = GENERATION.replace("assistant\n{% endif %}", "assistant{% endif %}")
    starts = opened.replace("m.content.replace('b', 'B')", "'B' if m.content.startswith('b') else m.content")
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt([(H, "aa"), (G, "b"), (H, "cc"), (G, "dd")])])
    result = prepared(path, chatml, chat_template="jinja", chat_template_jinja=starts)
    assert trained(chatml, result.train[0]) == "B<|im_end|>dd<|im_end|>"
    assert result.report.train.sets[0].methods == {"generation blocks": 1}


def test_noncharacters_of_a_row_are_trained_as_they_are(tmp_path: Path, chatml: Any) -> None:
    said = "a\ufdd8b\ufdd9c\ufdd0d"
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt([(H, "q\ufdd8"), (G, said)])])
    assert trained(chatml, prepared(path, chatml).train[0]) == f"{said}<|im_end|>"


@pytest.mark.parametrize("turns", [[(H, "q\ufdd8"), (G, "a")], [(H, "q"), (G, "a\ufdd9")]])
def test_noncharacters_that_mark_generation_blocks_are_refused(tmp_path: Path, chatml: Any, turns: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(turns)])
    told = refused(path, chatml, chat_template="jinja", chat_template_jinja=GENERATION)
    assert told.startswith(f"{path}:1: the row holds a noncharacter that marks generation blocks")


UNMARKED = {  # a template that asks how a content starts takes no marks
    "generation blocks": GENERATION.replace("assistant\n{% endif %}", "assistant{% endif %}").replace(
        "m.content.replace('b', 'B')", "'B' if m.content.startswith('b') else m.content"
    ),
    "beginnings": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ 'B' if m.content.startswith('b') else m.content }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
}


@pytest.mark.parametrize("method", UNMARKED)
@pytest.mark.parametrize("keys", [{"roles_to_train": ("assistant", "user")}, {"train_on_eos": "all"}])
def test_a_role_to_train_whose_turns_cannot_be_found_is_refused(
    tmp_path: Path, chatml: Any, method: str, keys: dict[str, Any]
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt([(H, "aa"), (G, "b"), (H, "cc"), (G, "dd")])])
    own: dict[str, Any] = {"chat_template": "jinja", "chat_template_jinja": UNMARKED[method]}
    assert prepared(path, chatml, **own).report.train.sets[0].methods == {method: 1}
    with pytest.raises(DataError, match=r"rows.jsonl:1: turn 1 \(user\) has something to train, and is not found"):
        prepared(path, chatml, **own, **keys)


def test_a_role_to_train_that_the_template_leaves_out_is_refused(tmp_path: Path, chatml: Any) -> None:
    template = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    template += "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt([("system", "s"), (H, "aa"), (G, "b")])])
    own: dict[str, Any] = {"chat_template": "jinja", "chat_template_jinja": template}
    assert trained(chatml, prepared(path, chatml, **own).train[0]) == "b<|im_end|>"
    with pytest.raises(DataError, match=r"turn 1 \(system\) has something to train"):
        prepared(path, chatml, roles_to_train=("assistant", "system"), **own)


def test_a_template_that_drops_earlier_reasoning_never_trains_a_user(tmp_path: Path, chatml: Any) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    turns = [(H, "a"), (G, "<think>t</think>one"), (H, "b"), (G, "<think>u</think>two")]
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(turns)])
    result = prepared(path, chatml, chat_template="jinja", chat_template_jinja=template)
    assert trained(chatml, result.train[0]) == "one<|im_end|><think>u</think>two<|im_end|>"


def test_the_tokenizers_own_template_comes_before_chatml(tmp_path: Path, bare_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bare_folder)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role[0] }}>{{ m.content }}</s>{% endfor %}"
    tokenizer.chat_template += "{% if add_generation_prompt %}a>{% endif %}"
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[0])])
    own = prepared(path, tokenizer, chat_template=None)
    assert tokenizer.decode(own.train[0].input_ids) == "u>2+2?</s>a>4</s>"
    assert own.chat_template == tokenizer.chat_template
    old = prepared(path, tokenizer, conversation="chatml")
    assert tokenizer.decode(old.train[0].input_ids).startswith("<|im_start|>user\n2+2?<|im_end|>\n")
    tokenizer.chat_template = None
    assert prepared(path, tokenizer, chat_template=None).report.train.sets[0].template == "built-in chatml"
    assert "the tokenizer has no chat template of its own" in refused(
        path, tokenizer, chat_template="tokenizer_default"
    )


def test_markers_unknown_to_the_tokenizer_are_still_masked_right(tmp_path: Path, bare_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bare_folder)
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[2])])
    assert trained(tokenizer, prepared(path, tokenizer).train[0]) == "hi<|im_end|>hi again<|im_end|>"


def test_alpaca_trains_the_output_and_its_end(tmp_path: Path, any_tokenizer: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"instruction": "two plus two", "output": "four"}])
    example = prepared(path, any_tokenizer, type="alpaca").train[0]
    assert trained(any_tokenizer, example).strip() == "four<|im_end|>"
    has_bos = any_tokenizer("x")["input_ids"][0] == any_tokenizer.bos_token_id
    assert (example.input_ids == any_tokenizer.bos_token_id).sum() == has_bos


def test_a_token_across_the_border_is_trained(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    whole = Tokenizer(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.decoder = decoders.ByteLevel()
    whole.train_from_iterator(
        [f"{letter}: f{letter}" for letter in "abcdefgh"],
        trainers.BpeTrainer(vocab_size=258, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=whole)
    rows = [{"segments": [{"label": False, "text": "x q: "}, {"label": True, "text": "four"}]}]
    example = prepared(write_rows(tmp_path / "rows.jsonl", rows), tokenizer, type="input_output").train[0]
    assert example.input_ids.tolist() == tokenizer("x q: four")["input_ids"]
    assert trained(tokenizer, example) == ": four"


def test_text_without_bos_and_eos_tokens_is_ids_only(tmp_path: Path, bare_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bare_folder)
    tokenizer.bos_token = tokenizer.eos_token = None
    path = write_rows(tmp_path / "rows.jsonl", [{"text": "abc"}])
    assert tokenizer.decode(prepared(path, tokenizer, type="completion").train[0].input_ids) == "abc"


def test_text_that_trains_no_end_is_counted_and_said(tmp_path: Path, bare_folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bare_folder)
    path = write_rows(tmp_path / "rows.jsonl", [{"text": "abc"}, {"text": "def"}])
    with_end = prepared(path, tokenizer, type="completion").report
    assert (with_end.train.sets[0].ended, with_end.train.sets[0].endless, warnings_of(with_end)) == (2, 0, [])
    tokenizer.eos_token = None
    without = prepared(path, tokenizer, type="completion").report
    assert (without.train.sets[0].ended, without.train.sets[0].endless) == (0, 2)
    assert mask_report(without.train.sets[0])["no end"] == "2 documents, as the tokenizer has no EOS"
    assert warnings_of(without) == [
        f'{path}: 2 documents train no end, as the tokenizer has no EOS; name one: special_tokens: {{eos_token: "..."}}'
    ]


BAD_ROWS = [
    sharegpt([(H, ""), (G, "ok")]),
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": None}]},
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt"}]},
    {"conversations": []},
    {"conversations": None},
    sharegpt([(H, "only me")]),
]


def test_bad_rows_are_set_aside_with_their_reason(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", BAD_ROWS)
    result = prepared(path, chatml, cache=tmp_path / "cache", bad_rows="skip")
    account = result.report.train.sets[0]
    assert (account.rows, account.documents) == (6, 1)
    assert account.dropped == {"bad row": 4, "nothing to train on": 1}
    (rejected,) = (tmp_path / "cache").glob("*/rejected.jsonl")
    lines = [json.loads(line) for line in rejected.read_text(encoding="utf8").splitlines()]
    assert [line["where"] for line in lines] == [f"{path}:{n}" for n in (2, 3, 4, 5)]
    assert lines[0]["reason"] == "turn 2: 'value' must be text, got null"


def test_a_bad_row_stops_with_its_line(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", BAD_ROWS)
    assert refused(path, chatml) == (
        f"{path}:2: turn 2: 'value' must be text, got null\nhelp: fill it in, remove the row, or set bad_rows: skip"
    )


def test_an_empty_data_set_is_refused(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [])
    assert refused(path, chatml) == f"{path}: the data set is empty\nhelp: check the path, split and file"


def test_a_template_that_refuses_a_row_is_quoted(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[0])])
    assert refused(
        path, chatml, chat_template="jinja", chat_template_jinja="{{ raise_exception('no users here') }}"
    ) == (
        f"{path}:1: the chat template refuses this conversation: no users here\n"
        "help: mend the row, choose another chat_template, or set bad_rows: skip"
    )


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "maximum recursion depth exceeded"),
        ("{{ messages[0].content.encode('ascii') }}", "'ascii' codec can't encode"),
        ("{% for n in range(10 ** 9) %}{% endfor %}", "Range too big"),
    ],
)
def test_whatever_a_template_raises_names_the_row(tmp_path: Path, chatml: Any, template: str, words: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt([(H, "\u00e4"), (G, "hi")])])
    told = refused(path, chatml, chat_template="jinja", chat_template_jinja=template)
    assert told.startswith(f"{path}:1: the chat template refuses this conversation: {words}")


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[0])])
    code = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    assert "the chat template refuses" in refused(path, chatml, chat_template="jinja", chat_template_jinja=code)


def test_an_unknown_type_or_template_names_the_choices(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(CONVERSATIONS[0])])
    assert refused(path, chatml, type="alpacca").startswith(
        f"{path}: unknown data set type, got alpacca\nhelp: use one of alpaca, "
    )
    assert "unknown chat template, got vicunia" in refused(path, chatml, conversation="vicunia")


LONG = [sharegpt([(H, "w " * 40), (G, "ok")]), sharegpt([(H, "a"), (G, "y " * 60)]), sharegpt([(H, "a"), (G, "b")])]


def test_long_rows_are_dropped_and_counted(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", LONG)
    result = prepared(path, chatml, sequence_len=32)
    assert result.report.dropped == {"longer than sequence_len": 2}
    assert len(result.train) == 1


def test_long_rows_are_cut_and_keep_the_labels_of_what_is_left(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", LONG)
    result = prepared(path, chatml, sequence_len=32, excess_length_strategy="truncate")
    assert result.report.dropped == {"nothing to train on within sequence_len": 1}
    assert result.report.truncated == 1
    assert result.train.lengths.max() == 32
    assert trained(chatml, result.train[0]).startswith("y y y")
    assert result.report.trained_tokens == {"assistant": sum(int((e.labels >= 0).sum()) for e in result.train)}


def test_long_rows_can_be_an_error(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", LONG)
    message = refused(path, chatml, sequence_len=32, excess_length_strategy="error")
    assert message.startswith(f"{path}:1: the row is longer than sequence_len 32, got ")


def test_nothing_left_says_why(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", LONG[:2])
    message = refused(path, chatml, sequence_len=16)
    assert message.startswith(f"{path}: none of the 2 rows can be trained on (2 longer than sequence_len; longest row")


def test_the_cache_is_hit_until_something_that_shapes_tokens_changes(tmp_path: Path, chatml: Any) -> None:
    path, cache = write_rows(tmp_path / "rows.jsonl", LONG), tmp_path / "cache"

    def state(**keys: Any) -> str:
        return prepared(path, chatml, cache, **keys).report.train.cache.partition(":")[0]

    assert [state(), state()] == ["miss", "hit"]
    assert [state(val_set_size=1), state(sample_packing=True)] == ["hit", "hit"]  # these shape no token
    assert [state(train_on_eos="none"), state(sequence_len=2048), state(default_system_message="S")] == ["miss"] * 3
    write_rows(path, LONG[1:])
    assert [state(), state()] == ["miss", "hit"]


def test_cached_documents_are_memory_maps_equal_to_fresh_ones(tmp_path: Path, chatml: Any) -> None:
    path = write_rows(tmp_path / "rows.jsonl", LONG)
    fresh = prepared(path, chatml)
    prepared(path, chatml, tmp_path / "cache")
    cached = prepared(path, chatml, tmp_path / "cache")
    assert isinstance(cached.train.tokens, np.memmap)
    assert cached.train.tokens.dtype == np.int32
    for one, other in zip(fresh.train, cached.train, strict=True):
        assert np.array_equal(one.input_ids, other.input_ids)
        assert np.array_equal(one.labels, other.labels)
        assert one.where == other.where
    assert cached.report.train.sets == fresh.report.train.sets


def test_two_processes_prepare_once_and_split_alike(tmp_path: Path, bare_folder: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [sharegpt(turns) for turns in CONVERSATIONS])
    code = (
        "import sys; from pathlib import Path; from transformers import AutoTokenizer\n"
        "from ftkit.data.prepare import prepare; from ftkit.recipe.section.data import DataSection, DatasetSection\n"
        "path, folder, cache = sys.argv[1:]\n"
        "data = DataSection(datasets=(DatasetSection(path=path, type='sharegpt'),), val_set_size=0.3)\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        "made = prepare(data, tokenizer, cache_dir=Path(cache), sequence_len=2048, seed=1)\n"
        "print(made.report.train.cache.partition(':')[0], sorted(e.where.line for e in made.evaluation))\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(bare_folder), str(tmp_path / "cache")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "PYTHONPATH": source, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate()[0].strip().split(" ", 1) for process in processes]
    assert sorted(state for state, _ in outputs) == ["hit", "miss"]
    assert outputs[0][1] == outputs[1][1]


def test_test_datasets_are_prepared_beside_the_training_set(tmp_path: Path, chatml: Any) -> None:
    train = write_rows(tmp_path / "train.jsonl", LONG)
    test = DatasetSection(path=str(write_rows(tmp_path / "test.jsonl", LONG[2:])), type="sharegpt")
    result = prepared(train, chatml, test_datasets=(test,))
    assert result.evaluation is not None
    assert (len(result.train), len(result.evaluation)) == (3, 1)
    assert (result.report.num_train, result.report.num_evaluation) == (3, 1)


def test_text_is_kept_byte_for_byte_whatever_other_rows_hold(tmp_path: Path, chatml: Any) -> None:
    odd = {"conversations": [{"from": "human", "value": "n?"}, {"from": "gpt", "value": 5}]}
    rows = [sharegpt([(H, "q"), (G, text)]) for text in ("007", "true", '{"a": 1}', "1e5")]
    with_odd = prepared(write_rows(tmp_path / "odd.jsonl", [odd, *rows]), chatml, bad_rows="skip")
    plain = prepared(write_rows(tmp_path / "rows.jsonl", rows), chatml)
    assert [trained(chatml, e) for e in plain.train] == [f"{t}<|im_end|>" for t in ("007", "true", '{"a": 1}', "1e5")]
    for one, other in zip(plain.train, with_odd.train, strict=True):
        assert np.array_equal(one.input_ids, other.input_ids)


def test_tools_that_the_template_does_not_write_are_refused_or_counted(tmp_path: Path, chatml: Any) -> None:
    rows = [sharegpt(CONVERSATIONS[0]), {**sharegpt(CONVERSATIONS[0]), "tools": '[{"name": "f"}]'}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    assert refused(path, chatml) == (
        f"{path}:2: the row has tools, and the chat template has no place for them\n"
        "help: choose a chat_template that writes tools (such as qwen_25 or qwen3), take them out of the row, or set "
        "allow: [lost_tools]"
    )
    counted = prepared(path, chatml, allow=("lost_tools",))
    assert counted.report.train.sets[0].allowed == {"lost_tools": 1}
    written = prepared(path, chatml, conversation="qwen_25")
    assert [chatml.decode(example.input_ids).count('{"name": "f"}') for example in written.train] == [0, 1]


def test_progress_is_told_while_preparing_and_not_on_a_hit(tmp_path: Path, chatml: Any) -> None:
    path, told = write_rows(tmp_path / "rows.jsonl", LONG), list[tuple[int, int | None]]()
    data = DataSection(datasets=(DatasetSection(path=str(path), type="sharegpt", conversation="chatml"),))

    def tell(rows: int, expected: int | None) -> None:
        told.append((rows, expected))

    for _ in range(2):
        prepare(data, chatml, cache_dir=tmp_path / "c", sequence_len=2048, seed=1, on_progress=tell)
    assert told == [(3, 3)]


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("tokens.npy", cut_in_half),
        ("tokens.npy", lambda file: file.write_bytes(b"")),
        ("tokens.npy", lambda file: np.save(file, np.zeros(3, np.int32))),
        ("origins.npy", Path.unlink),
        ("prepared.json", cut_in_half),
        ("prepared.json", Path.unlink),
        ("prepared.json", lambda file: file.write_text("{}")),
    ],
)
def test_prepared_data_that_is_broken_is_made_anew(tmp_path: Path, chatml: Any, name: str, spoil: Any) -> None:
    path, cache = write_rows(tmp_path / "rows.jsonl", LONG), tmp_path / "cache"
    whole = [example.input_ids.tolist() for example in prepared(path, chatml, cache).train]
    (file,) = cache.glob(f"[!.]*/{name}")
    spoil(file)
    again = prepared(path, chatml, cache)
    assert again.report.train.cache.startswith("miss: what was prepared is broken and is made anew (")
    assert [example.input_ids.tolist() for example in again.train] == whole
    assert prepared(path, chatml, cache).report.train.cache == "hit"


def test_a_broken_neighbour_of_the_cache_is_passed_over(tmp_path: Path, chatml: Any) -> None:
    path, cache = write_rows(tmp_path / "rows.jsonl", LONG), tmp_path / "cache"
    prepared(path, chatml, cache)
    for key in cache.glob("*/key.json"):
        cut_in_half(key)
    changed = prepared(path, chatml, cache, sequence_len=2048).report.train.cache
    assert changed == "miss: nothing like it was prepared before"


@pytest.mark.parametrize("below", ["", "more"])
def test_a_file_cannot_be_the_folder_of_prepared_data(tmp_path: Path, chatml: Any, below: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", LONG)
    with pytest.raises(DataError) as caught:
        prepared(path, chatml, path / below)
    assert str(caught.value) == (
        f"dataset_prepared_path: no folder of prepared data can be there: {path / below} is a file, "
        f"got {path / below}\nhelp: name a folder that can be written into"
    )


def test_a_miss_says_what_changed(tmp_path: Path, chatml: Any) -> None:
    path, cache = write_rows(tmp_path / "rows.jsonl", LONG), tmp_path / "cache"

    def why(**keys: Any) -> str:
        return prepared(path, chatml, cache, **keys).report.train.cache

    assert why() == "miss: nothing like it was prepared before"
    assert why(sequence_len=2048) == "miss: sequence_len changed"
    assert why(sequence_len=2048, train_on_eos="none") == "miss: the mask rules changed"
    write_rows(path, LONG[1:])
    assert why() == "miss: the data's bytes changed"
