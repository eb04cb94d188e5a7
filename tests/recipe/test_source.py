"""YAML as people paste it."""

from hypothesis import given
from hypothesis import strategies as st

from ftkit.recipe.source import read_source


def read(text):
    return read_source("r.yml", text)


def codes(text):
    return [(p.severity, p.code, p.line, p.column) for p in read(text).problems]


def test_places_of_keys_and_values():
    source = read("a: 1\nb:\n  - c: x\n")
    assert source.data == {"a": 1, "b": [{"c": "x"}]}
    mark = source.values[("b", 0, "c")]
    assert (mark.line, mark.column) == (3, 8)


def test_byte_order_mark_carriage_returns_and_fence():
    assert read_source("r.yml", b"\xef\xbb\xbf```yaml\r\na: 1\r\nb: 2\r\n```\r\n").data == {"a": 1, "b": 2}


def test_odd_spaces_around_values_are_plain_and_named_once():
    source = read("a:\u00a01\nb:\n\u00a0 - 'x\u00a0y'\n")
    assert source.data == {"a": 1, "b": ["x\u00a0y"]}
    assert [(p.code, p.line, p.column) for p in source.problems] == [("odd-space", 1, 3)]


def test_tabs_after_values_are_read_and_tabs_as_indentation_are_explained():
    assert read("a:\t1\nb: 2\t\nc: 3 \t# three\n").data == {"a": 1, "b": 2, "c": 3}
    [problem] = read("a:\n\tb: 1\n").problems
    assert (problem.line, problem.help) == (2, "this line is indented with a tab; YAML takes spaces only")


def test_backticks_are_explained():
    [problem] = read("a: 1\nb: `x`\n").problems
    assert (problem.line, problem.help) == (2, "backticks come from a web page; remove them, or quote the value")


def test_a_repeated_key_is_an_error_unless_it_says_the_same():
    source = read("a: 1\nb: 2\na: 3\n")
    [problem] = source.problems
    assert (problem.severity, problem.line) == ("error", 3)
    assert problem.message == "the key `a` stands twice, first in line 1"
    assert codes("a: [1, x]\na:\n  - 1\n  - x\n") == [("warning", "duplicate-key", 2, 1)]


def test_merges_bring_keys_and_own_keys_win():
    assert read("base: &b {x: 1, y: 2}\nc: {<<: *b, y: 3}\n").data["c"] == {"x": 1, "y": 3}
    assert codes("a: &a\n  <<: *a\n") == [("error", "bad-merge", 1, 4)]


def test_of_a_list_of_merges_the_first_wins():
    source = read("a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*a, *b]}\n")
    assert source.data["c"] == {"x": 1, "y": 2}
    assert source.values[("c", "x")].line == 1


def test_files_that_are_no_recipe():
    assert codes("") == [("error", "empty", 0, 0)]
    assert codes("- a\n") == [("error", "not-a-mapping", 1, 1)]
    assert codes("a: &x [*x]\n") == [("error", "alias-loop", 1, 1)]
    assert read_source("r.yml", b"a: 1\nb: \xff\n").problems[0].line == 2


def test_aliases_that_unfold_without_end_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert [p.code for p in read("\n".join(lines)).problems] == ["too-large"]


def test_deep_nesting_is_refused():
    assert read("a: " + "[" * 5000 + "]" * 5000).problems


@given(st.text())
def test_any_text_gives_values_or_problems(text):
    source = read(text)
    assert source.data or source.problems or isinstance(source.data, dict)


@given(st.binary())
def test_any_bytes_give_values_or_problems(content):
    read_source("r.yml", content)
