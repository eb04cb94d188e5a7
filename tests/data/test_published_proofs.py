"""What `prepare` proves of every published template of the corpus: which hold, which are noted, which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftkit.data.accounts import SetAccount
from ftkit.data.prepare import Prepared, prepare
from ftkit.data.values import IGNORED
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection

PLAIN = [["a?", "b."], ["a?", "b.", "c?", "d."]]
THINKING = [["a?", "<think>\nt\n</think>\n\nb."]]
# Written with line breaks and indentation to be read; whoever uses them takes these out first.
INDENTED = (
    *("alpaca", "amberchat", "llama-3-instruct", "openchat-3.5"),
    *("phi-3", "saiga", "vicuna", "zephyr"),
)
# The generation prompt brings a block of reasoning: what the note says of it.
REASONS = {
    "axolotl__gemma4": "ends with '<|channel>thought\\n<channel|>' where these rows have nothing",
    "nemo__convergence__tulu3__models__gemma4-31b__chat_template": "ends with '<|channel>thought\\n<channel|>'",
    "nemo__long_context_validation__gemma4_31B__gemma4_coderforge_chat_template": "ends with '<|channel>thought\\n<ch",
    "trl__deepseekv3": "ends with '<think>\\n' where these rows have nothing",
    "trl__nemotron_3_nano_training": "set chat_template_kwargs: {enable_thinking: false}",
}
# No end of turn behind earlier turns of the model; behind the last one.
ENDLESS = {
    "axolotl__llava": (True, True),
    "axolotl__metharme": (True, False),
    "trl__glm4moe": (True, True),
    "stripped amberchat": (True, True),
}
# Of rows whose answers begin with reasoning.
REASONS_OF_THINKING = {
    "axolotl__qwen3": "ends with '<think>\\n\\n' where these rows have nothing",
    "axolotl__qwen3_5": "ends with '<think>\\n\\n' where these rows have nothing",
    "minimind__chat_template": "set chat_template_kwargs: {open_thinking: true}",
    "trl__qwen3_5_nothink": "set chat_template_kwargs: {enable_thinking: true}",
    "trl__qwen3_5_nothink_training": "set chat_template_kwargs: {enable_thinking: true}",
}


def write(path: Path, talks: list[list[str]], system: str | None = None) -> Path:
    first = [] if system is None else [{"role": "system", "content": system}]
    rows = [
        first + [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(talk)]
        for talk in talks
    ]
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows), encoding="utf8")
    return path


def prepared(path: Path, tokenizer: Any, template: str, **keys: Any) -> Prepared:
    dataset = DatasetSection(path=str(path), type="chat_template")
    data = DataSection(datasets=(dataset,), chat_template="jinja", chat_template_jinja=template, **keys)
    eot_tokens = ("<|user|>",) if "<|user|>" in tokenizer.get_vocab() else ()
    return prepare(data, tokenizer, cache_dir=None, sequence_len=8192, seed=1, eot_tokens=eot_tokens)


def account(result: Prepared) -> SetAccount:
    return result.report.train.sets[0]


def refused(*args: Any, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        prepared(*args, **keys)
    return str(caught.value)


@pytest.fixture(scope="module")
def templates(corpus: Path) -> dict[str, str]:
    """By name; those written to be read once as they are, once as they are used."""
    found = {file.stem: file.read_text("utf8") for file in sorted((corpus / "chat_templates").glob("*.jinja"))}
    for name in INDENTED:
        found[f"stripped {name}"] = found[f"chujiezheng__{name}"].replace("    ", "").replace("\n", "")
    return found


def test_every_template_holds_is_noted_or_refused(templates: dict[str, str], tmp_path: Path, chatml: Any) -> None:
    path = write(tmp_path / "rows.jsonl", PLAIN)
    assert len(templates) == 74 + len(INDENTED)
    num_clean = 0
    for name, text in templates.items():
        if name.removeprefix("chujiezheng__") in INDENTED:
            message = refused(path, chatml, text)
            assert message.startswith(f"{path}:1: what stands before the last answer is not the prompt"), name
            assert "the chat template writes white space of its own, and not the same in both" in message, name
            continue
        found = account(prepared(path, chatml, text))
        assert (found.documents, found.compared_prompts, found.ended, found.allowed) == (2, 2, 2, {}), name
        notes = "; ".join(found.notes)
        assert REASONS.get(name, "") in notes, (name, notes)
        assert (
            "writes no end of turn behind earlier turns" in notes,
            "behind the last answer, so the tokenizer's EOS follows it" in notes,
        ) == ENDLESS.get(name, (False, False)), (name, notes)
        assert bool(notes) == (name in REASONS or name in ENDLESS), (name, notes)
        num_clean += not notes
    assert num_clean >= 60


def test_rows_with_reasoning_are_noted_where_the_prompt_has_other_reasoning(
    templates: dict[str, str], tmp_path: Path, chatml: Any
) -> None:
    path = write(tmp_path / "rows.jsonl", THINKING)
    for name, wanted in REASONS_OF_THINKING.items():
        (note,) = account(prepared(path, chatml, templates[name])).notes
        assert wanted in note, (name, note)


@pytest.mark.parametrize("name", ["minimind__chat_template", "trl__qwen3_5_nothink", "trl__nemotron_3_nano_training"])
def test_the_setting_that_a_note_names_makes_the_prompts_equal(
    name: str, templates: dict[str, str], tmp_path: Path, chatml: Any
) -> None:
    rows = PLAIN if name in REASONS else THINKING
    path = write(tmp_path / "rows.jsonl", rows)
    note = (REASONS | REASONS_OF_THINKING)[name]
    key, value = note.partition("{")[2].rstrip("}").split(": ")
    found = account(prepared(path, chatml, templates[name], chat_template_kwargs={key: value == "true"}))
    assert (found.notes, found.compared_prompts) == ({}, len(rows))


def test_a_template_that_leaves_out_the_system_turn_is_refused(
    templates: dict[str, str], tmp_path: Path, chatml: Any
) -> None:
    """It writes the system text into the last turn if that is the user's: in a prompt, and never in training."""
    path = write(tmp_path / "rows.jsonl", PLAIN, system="Be brief.")
    text = templates["axolotl__mistral_v2v3"]
    assert (
        "help: the chat template leaves out turn 1 (system) once an answer follows: choose another chat_template, or "
        "set allow: [other_prompt]"
    ) in refused(path, chatml, text)
    assert account(prepared(write(path, PLAIN), chatml, text)).notes == {}


def test_eos_follows_a_last_answer_that_the_template_never_ends(
    templates: dict[str, str], tmp_path: Path, chatml: Any
) -> None:
    path = write(tmp_path / "rows.jsonl", PLAIN)
    result = prepared(path, chatml, templates["axolotl__llava"])
    single, double = result.train[0], result.train[1]
    assert chatml.decode(single.input_ids) == "USER: a? ASSISTANT: b. <|im_end|>"
    assert chatml.decode(single.input_ids[single.labels != IGNORED]) == " b. <|im_end|>"
    assert chatml.decode(double.input_ids[double.labels != IGNORED]) == " b. d. <|im_end|>"
    as_written = prepared(path, chatml, templates["axolotl__llava"], allow=("missing_end",))
    assert chatml.decode(as_written.train[0].input_ids) == "USER: a? ASSISTANT: b. "
    assert account(as_written).allowed == {"missing_end": 2}
    assert account(as_written).ended == 0


def test_what_opens_the_next_turn_may_end_one(templates: dict[str, str], tmp_path: Path, chatml: Any) -> None:
    """GLM stops at `<|user|>`: named as an end of turn, it is trained behind earlier answers."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=chatml.backend_tokenizer, eos_token="</s>")
    tokenizer.add_tokens(["<|user|>", "<|assistant|>"], special_tokens=True)
    result = prepared(write(tmp_path / "rows.jsonl", PLAIN), tokenizer, templates["trl__glm4moe"])
    example = result.train[1]
    said = tokenizer.decode(example.input_ids[example.labels != IGNORED])
    assert said == "\n<think></think>\nb.<|user|>\n<think></think>\nd.</s>"
    assert ["earlier turns" in note for note in account(result).notes] == [False]


def test_a_data_set_in_which_nothing_trains_an_end_is_refused(
    templates: dict[str, str], tmp_path: Path, chatml: Any
) -> None:
    """Metharme ends the last turn only, and every row ends on the user."""
    path = write(tmp_path / "rows.jsonl", [["a?", "b.", "c?"]])
    assert refused(path, chatml, templates["axolotl__metharme"]).startswith(
        f"{path}: no end-of-turn token follows a trained turn, so the model would not learn to stop, in any document"
    )
    mixed = write(tmp_path / "mixed.jsonl", [["a?", "b.", "c?"], ["a?", "b."]])
    found = account(prepared(mixed, chatml, templates["axolotl__metharme"]))
    assert (found.documents, found.ended, found.without_end) == (2, 1, 1)
    assert account(prepared(path, chatml, templates["axolotl__metharme"], train_on_eos="none")).documents == 1


def test_a_turn_without_the_end_that_the_template_writes_elsewhere_is_refused(tmp_path: Path, chatml: Any) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '' if m.content == 'b.' else eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    path = write(tmp_path / "rows.jsonl", [["a?", "x."], ["a?", "b."]])
    assert refused(path, chatml, template) == (
        f"{path}:2: no end-of-turn token follows a trained turn, so the model would not learn to stop\n"
        "help: choose a chat_template that ends turns, or set allow: [missing_end]"
    )
    assert account(prepared(path, chatml, template, allow=("missing_end",))).allowed == {"missing_end": 1}


def test_without_an_eos_nothing_can_stand_in_for_the_end(
    templates: dict[str, str], tmp_path: Path, chatml: Any
) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=chatml.backend_tokenizer)
    path = write(tmp_path / "rows.jsonl", PLAIN)
    assert f"{path}:1: no end-of-turn token follows" in refused(path, tokenizer, templates["axolotl__llava"])
