"""The forms of a data set's type."""

import pytest

from ftkit.catalog import FORMATS
from ftkit.recipe.build import modernise
from ftkit.recipe.dataset_types import SAME_AS
from ftkit.recipe.source import read_source


def entry_of(kind, extra=""):
    source = read_source("r.yml", f"datasets:\n  - path: x\n    type: {kind}\n{extra}")
    modernise(source)
    errors = [(p.code, p.message) for p in source.problems if p.severity == "error"]
    return source.data["datasets"][0], errors


@pytest.mark.parametrize("kind", [*FORMATS, *SAME_AS])
def test_known_types_become_one_of_the_catalog(kind):
    entry, errors = entry_of(kind)
    assert errors == []
    assert entry["type"] in FORMATS


@pytest.mark.parametrize(
    "kind",
    [
        "alpaca:chat",
        "alpaca_w_system.load_open_orca",
        "context_qa.load_v2",
        "chat_template",
        "sharegpt",
        "sharegpt:chat",
        "{format: '{instruction}', field_instruction: q, field_output: a}",
        "",
    ],
)
def test_all_forms_are_read(kind):
    assert entry_of(kind)[1] == []


def test_a_conversation_beside_the_type_is_kept_or_migrated():
    entry, errors = entry_of("sharegpt", "    conversation: chatml\n")
    assert errors == []
    assert "chatml" in {entry.get("conversation"), entry.get("chat_template")}


@pytest.mark.parametrize("kind", ["chatml.intel", "llama3.ultra", "bradley_terry.chat_template", "ebft_x.transform"])
def test_pairs_are_refused(kind):
    [(code, message)] = entry_of(kind)[1]
    assert code == "refused"
    assert message == f"type {kind}: preference data is not supported yet"


def test_keys_of_pairs_are_refused_once():
    assert [code for code, _ in entry_of("chat_template", "    field_chosen: a\n    field_rejected: b\n")[1]] == [
        "refused"
    ]


def test_prompt_and_completion_are_a_format_of_ones_own():
    entry, errors = entry_of("completion", "    field_prompt: p\n    field_completion: c\n")
    assert errors == []
    assert (entry["type"]["field_instruction"], entry["type"]["field_output"]) == ("p", "c")


def test_unknown_types_and_keys_of_formats_get_a_suggestion():
    assert entry_of("alpacca")[1] == [("unknown-type", "no type of data set is called `alpacca`")]
    assert entry_of("{fromat: x}")[1] == [("unknown-key", "no key is called `fromat`")]


@pytest.mark.parametrize("number", ["5", "1.5", "007"])
def test_a_number_is_no_type(number):
    source = read_source("r.yml", f"datasets:\n  - path: x\n    type: {number}\n")
    modernise(source)
    [problem] = source.problems
    assert (problem.severity, problem.code, problem.line, problem.column) == ("error", "type", 3, 11)
    assert problem.message.startswith("`type` must be text or a mapping, got ")
