"""Values and their keys' types: what is read kindly, what is refused, and in which words."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftkit.recipe.build import build_sections, without_nulls
from ftkit.recipe.judge import KNOWN
from ftkit.recipe.recipe import SECTIONS
from ftkit.recipe.source import Source, read_source

GIVEN = "base_model: m\n"


def build(text, **options):
    source = read_source("r.yml", GIVEN + text)
    return build_sections(source, **options), source.problems


def value(text, section, name):
    sections, problems = build(text)
    assert not [problem for problem in problems if problem.severity == "error"]
    return getattr(sections[section], name)


def message(text):
    _, problems = build(text)
    [problem] = [problem for problem in problems if problem.severity == "error"]
    return f"{problem.line}:{problem.column} {problem.message} | {problem.help}"


@pytest.mark.parametrize(
    ("text", "section", "name", "expected"),
    [
        ("learning_rate: 2e-4", "optimization", "learning_rate", 2e-4),
        ("learning_rate: '2e-5'", "optimization", "learning_rate", 2e-5),
        ("learning_rate: 1", "optimization", "learning_rate", 1.0),
        ("micro_batch_size: '4'", "training", "micro_batch_size", 4),
        ("max_steps: 1e5", "training", "max_steps", 100000),
        ("warmup_steps: 010", "optimization", "warmup_steps", 10),
        ("bf16: 'true'", "training", "bf16", True),
        ("bf16: Off", "training", "bf16", False),
        ("bf16: auto", "training", "bf16", "auto"),
        ("eval_strategy: no", "evaluation", "eval_strategy", "no"),
        ("wandb_name: 007", "tracking", "wandb_name", "007"),
        ("wandb_name: off", "tracking", "wandb_name", "off"),
        ("val_set_size: 32", "data", "val_set_size", 32),
        ("val_set_size: 0.05", "data", "val_set_size", 0.05),
        ("eval_steps: 0.1", "evaluation", "eval_steps", 0.1),
        ("save_steps: 50", "saving", "save_steps", 50),
        ("logging_steps: 0.2", "training", "logging_steps", 0.2),
        ("num_epochs: 0.5", "training", "num_epochs", 0.5),
        ("lora_target_modules: [q, v]", "adapter", "lora_target_modules", ("q", "v")),
        ("lora_target_modules: all-linear", "adapter", "lora_target_modules", "all-linear"),
        ("gradient_checkpointing: offload", "training", "gradient_checkpointing", "offload"),
        ("gradient_checkpointing: yes", "training", "gradient_checkpointing", True),
    ],
)
def test_values_are_read_as_the_key_means_them(text, section, name, expected):
    found = value(text, section, name)
    assert found == expected
    assert type(found) is type(expected)


def test_null_is_absent_and_zero_is_not():
    sections, problems = build("weight_decay: 0\nlearning_rate:\nspecial_tokens:\n  pad_token: ~\n")
    assert not problems
    assert "learning_rate" not in sections["optimization"].model_fields_set
    assert sections["optimization"].model_fields_set == {"weight_decay"}
    assert sections["tokens"].special_tokens.pad_token is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("use_wandb: true8192", "2:12 `use_wandb` must be true or false, got true8192 | "),
        (
            "max_steps: 1:30",
            "2:12 `max_steps` must be a whole number, got 1:30"
            " | some readers take this for a time in base 60; write the number itself",
        ),
        ("max_steps: 1_000", "2:12 `max_steps` must be a whole number, got 1_000 | write 1000"),
        ("max_steps: true", "2:12 `max_steps` must be a whole number, got true | "),
        ("learning_rate: .nan", "2:16 `learning_rate` must be a number, got nan | "),
        ("adapter: loraa", "2:10 `adapter` must be one of lora, qlora, got loraa | did you mean `lora`?"),
        (
            "lora_modules_to_save: embed_tokens",
            "2:23 `lora_modules_to_save` must be a list, got embed_tokens"
            " | write `lora_modules_to_save: [embed_tokens]`",
        ),
        (
            "datasets:\n  path: x\n  type: alpaca",
            "2:1 `datasets` must be a list, got a mapping | put `- ` before the first key of each item",
        ),
        ("datasets:\n  - type: alpaca", "3:5 the key `path` is missing | add `path: ...`, text"),
        ("wandb_name: true", '2:13 `wandb_name` must be text, got true | quote it, "true", if it is meant as text'),
        (
            "output_dir: out/${RUN}",
            "2:13 ${RUN} was never filled in"
            " | write the value, or give it on the command line; environment variables are not read from recipes",
        ),
        ("learing_rate: 1", "2:1 no key is called `learing_rate` | did you mean `learning_rate`?"),
        (
            "datasets: [{path: x, fields_messages: y}]",
            "2:22 no key is called `fields_messages` | did you mean `field_messages`?",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_place_and_advice(text, expected):
    assert message(text) == expected


def test_an_unknown_key_without_value_is_a_warning():
    _, [problem] = build("evals_per_epok:")
    assert (problem.severity, problem.code) == ("warning", "unknown-key")


def test_lenient_makes_unknown_keys_warnings():
    sections, problems = build("learing_rate: 1\ndatasets: [{path: x, typ: y}]", lenient=True)
    assert {problem.severity for problem in problems} == {"warning"}
    assert sections.keys() == SECTIONS.keys()


def test_templates_keep_their_dollars():
    text = value("chat_template_jinja: '{% set a = \"${NAME}\" %}'", "data", "chat_template_jinja")
    assert text == '{% set a = "${NAME}" %}'


def test_all_problems_come_at_once():
    _, problems = build("bf16: 3\nlearning_rate: fast\ntypo_of_a_key: 1\ndatasets: [{path: x, shards: many}]")
    assert [problem.code for problem in sorted(problems, key=lambda p: p.line)] == [
        "type",
        "type",
        "unknown-key",
        "type",
    ]


def test_sections_made_in_python_equal_those_of_a_file(corpus):
    """Values and hash alike."""
    for path in sorted((corpus / "recipes").glob("*/*.y*ml")):
        sections = build_sections(read_source(str(path), path.read_bytes()))
        for section in sections.values():
            again = type(section).model_validate(section.model_dump(by_alias=True))
            assert again == section
            assert hash(again) == hash(section)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["datasets", "fsdp", "fsdp_config", "deepspeed", "tokens", "path", "type", "batch_size", "wandb"]
                ),
                inner,
            )
        ),
    )
)
def test_any_values_give_sections_or_problems(value):
    data = value if isinstance(value, dict) else {"datasets": value, "fsdp_config": value, "bnb_config_kwargs": value}
    source = Source("r.yml", "", data)
    sections = build_sections(source)
    assert len(sections) == len(SECTIONS) or source.problems


def test_nulls_go_at_any_depth_but_stay_in_lists():
    assert without_nulls({"a": None, "b": {"c": None}, "d": [None, {"e": None}]}) == {"b": {}, "d": [None, {}]}


ODD = [True, 0, -1, 1.5, float("inf"), float("nan"), 10**400, "x", "", "${A}", [], {}, [None], [1], [{}], [[]]]
ODDER = [{"a": None}, {"a": {"b": [1]}}, {"": 0}, [{"path": "x", "type": []}], ["x", {"x": 1}], {"zero_stage": "x"}]


@pytest.mark.parametrize("key", sorted(KNOWN))
def test_any_value_of_any_key_gives_sections_or_an_error(key):
    for value in (*ODD, *ODDER):
        for data in ({"base_model": "m", key: value}, {"base_model": "m", "datasets": [{"path": "x", key: value}]}):
            source = Source("r.yml", "", copy.deepcopy(data))
            sections = build_sections(source)
            assert len(sections) == len(SECTIONS) or any(problem.severity == "error" for problem in source.problems)
            assert all(hash(section) is not None for section in sections.values())
