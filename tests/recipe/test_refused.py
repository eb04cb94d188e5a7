"""Keys that are known and not served: refused with a reason, or named as having no effect."""

import pytest

from ftkit.recipe.build import build_sections, modernise
from ftkit.recipe.keys import HOLDERS
from ftkit.recipe.no_effect import NO_EFFECT
from ftkit.recipe.refused import HARMLESS, OF_OTHER_TOOLS, REFUSED
from ftkit.recipe.renames import RENAMED
from ftkit.recipe.source import Source, read_source


def problems_of(**keys):
    source = Source("r.yml", "", dict(keys))
    modernise(source)
    assert source.data == {}
    return source.problems


@pytest.mark.parametrize("key", REFUSED)
def test_a_refused_key_says_why_and_what_instead(key):
    [problem] = problems_of(**{key: "something"})
    assert problem.code == "refused"
    assert problem.severity == ("warning" if key in OF_OTHER_TOOLS else "error")
    assert problem.message == f"`{key}`: {REFUSED[key].reason}"
    assert problem.help


@pytest.mark.parametrize("value", [False, 0, "", [], {}])
def test_a_refused_key_that_is_off_is_a_note(value):
    [problem] = problems_of(gptq=value)
    assert (problem.severity, problem.code) == ("note", "no-effect")


def test_sizes_of_one_are_off():
    for key, value in HARMLESS.items():
        assert [problem.severity for problem in problems_of(**{key: value})] == ["note"]


def test_null_is_absent():
    assert problems_of(**dict.fromkeys([*REFUSED, *NO_EFFECT])) == []


@pytest.mark.parametrize("key", NO_EFFECT)
def test_a_key_without_effect_is_named(key):
    [problem] = problems_of(**{key: True})
    assert problem.code == "no-effect"
    assert problem.message == f"`{key}` has no effect: {NO_EFFECT[key]}"


def test_no_key_stands_in_two_tables():
    tables = [set(HOLDERS), set(REFUSED), set(NO_EFFECT), set(RENAMED)]
    assert len(set.union(*tables)) == sum(map(len, tables))


def test_plugins_are_judged_one_by_one():
    liger, own = "axolotl.integrations.liger.LigerPlugin", "my.code.Plugin"
    assert [(p.severity, p.key) for p in problems_of(plugins=[liger, own])] == [
        ("note", "plugins.0"),
        ("error", "plugins.1"),
    ]


def test_a_placeholder_is_named_also_where_the_key_does_nothing():
    [problem] = problems_of(rl="${RL}")
    assert problem.code == "placeholder"


@pytest.mark.parametrize("word", ["off", "no", "No", "n", "''", "false"])
def test_words_for_off_ask_for_nothing(word):
    source = read_source("r.yml", f"relora: {word}\n")
    modernise(source)
    assert [(problem.severity, problem.code) for problem in source.problems] == [("note", "no-effect")]


@pytest.mark.parametrize("text", ["${W}", "${W:-x}", "${W-x}", "a/${W:?say it}", "${W:-}"])
def test_placeholders_with_defaults_are_placeholders(text):
    source = read_source("r.yml", f"output_dir: '{text}'\nbase_model: m\n")
    build_sections(source)
    [problem] = [problem for problem in source.problems if problem.code == "placeholder"]
    assert problem.message == f"{text.removeprefix('a/')} was never filled in"
