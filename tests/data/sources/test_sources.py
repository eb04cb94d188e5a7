from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftkit.data.sources.local import read_file
from ftkit.data.sources.source import open_source
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection

ROWS: list[dict[str, Any]] = [{"text": "007", "n": 7}, {"text": "true", "n": None}, {"text": '{"a": 1}', "n": 1.0}]


def rows(path: Path | str, **keys: Any) -> list[tuple[Any, str]]:
    found = open_source(DatasetSection(path=str(path), **keys)).rows()
    return [(dict(row.values), str(row.where).removeprefix(f"{path}:")) for row in found]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("\n".join(json.dumps(row) for row in ROWS), "1 2 3"),
        ("\r\n\r\n".join(json.dumps(row) for row in ROWS) + "\r\n\r\n", "1 3 5"),
        (json.dumps(ROWS), "1 1 1"),
        (json.dumps(ROWS, indent=2), "2 6 10"),
        ("\n\n".join(json.dumps(row, indent=1) for row in ROWS), "1 6 11"),
    ],
    ids=["lines", "crlf_and_blank_lines", "array", "pretty_array", "pretty_objects"],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "bom"])
def test_json_is_told_apart_by_content_and_keeps_types(
    tmp_path: Path, name: str, content: str, lines: str, mark: bytes
) -> None:
    path = write(tmp_path / name, mark + content.encode())
    assert rows(path) == list(zip(ROWS, lines.split(), strict=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}\n{"a": \n{"a": 2}', ":2: not JSON: Expecting value\nhelp: mend this line of the file"),
        ('[{"a": 1},\n {"a": 2}\n {"a": 3}]', ":3: not JSON: expected ',' or ']' after a row"),
        ('[[{"from": "human"}]]', ":1: a row must be a JSON object, got an array"),
        ('{"a": 1}\n"b"', ":2: a row must be a JSON object, got a string"),
        (b'{"a": "x"}\n{"a": "\xff"}', ":2: not UTF-8 text, got byte 0xff\nhelp: save the file as UTF-8"),
    ],
)
def test_broken_json_names_the_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = write(tmp_path / "rows.jsonl", content)
    with pytest.raises(DataError) as caught:
        rows(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_csv_cells_are_text_as_written(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", b'\xef\xbb\xbfa,b\r\n007,"x,\r\ny"\r\n\r\n,NA\r\n')
    assert rows(path) == [({"a": "007", "b": "x,\r\ny"}, "2"), ({"a": "", "b": "NA"}, "5")]


def test_csv_with_a_missing_cell_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "a,b\n1,2\n3\n")
    with pytest.raises(DataError) as caught:
        rows(path)
    assert str(caught.value).startswith(f"{path}:3: a row must have the header's 2 cells, got 1")


def test_text_gives_a_row_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.txt", "one \r\n\ntwo")
    assert rows(path) == [({"text": "one "}, "1"), ({"text": "two"}, "3")]


def test_parquet_counts_rows_and_arrow_reads_the_same(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import ipc, parquet

    table = pyarrow.table({"a": ["007", None], "b": [[{"x": "1"}], []]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    with ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as file:
        file.write_table(table)
    expected = [({"a": "007", "b": [{"x": "1"}]}, "1"), ({"a": None, "b": []}, "2")]
    assert rows(tmp_path / "rows.parquet") == rows(tmp_path / "rows.arrow") == expected


def test_a_missing_file_is_said_with_its_whole_path_and_without_the_network(tmp_path: Path) -> None:
    path = tmp_path / "absent.jsonl"
    with pytest.raises(DataError) as caught:
        rows(path)
    assert str(caught.value) == (
        f"{path}: file not found, got {path}\n"
        "help: check the path; relative paths start at the folder the command runs in"
    )


def test_a_hub_id_that_cannot_be_reached_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("offline mode is enabled")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError) as caught:
        rows("abacusai/SystemChat")
    assert str(caught.value) == (
        "abacusai/SystemChat: neither a local file nor a data set of the hub that can be read now, "
        "got abacusai/SystemChat (offline mode is enabled)\n"
        "help: for a local file give its path; for a hub id check the name, the connection and HF_HUB_OFFLINE"
    )


def test_globs_folders_and_data_files(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl"):
        write(tmp_path / name, json.dumps({"text": name}))
    write(tmp_path / "notes.bin", "no data")
    expected = [{"text": "a.jsonl"}, {"text": "b.jsonl"}]
    assert [values for values, _ in rows(f"{tmp_path}/*.jsonl")] == expected
    assert [values for values, _ in rows(tmp_path)] == expected
    assert [values for values, _ in rows(tmp_path, data_files=("b.jsonl",))] == expected[1:]
    assert [values for values, _ in rows("json", data_files=(f"{tmp_path}/a.jsonl",))] == expected[:1]


@pytest.mark.parametrize(
    ("split", "kept"),
    [("train", 10), ("train[:3]", 3), ("train[7:]", 3), ("train[:20%]", 2), ("train[-4:]", 4), ("train[10%:30%]", 2)],
)
def test_a_split_can_be_a_slice(tmp_path: Path, split: str, kept: int) -> None:
    path = write(tmp_path / "rows.jsonl", "\n".join(json.dumps({"n": n}) for n in range(10)))
    assert len(rows(path, split=split)) == kept


def test_shards_take_one_row_in_so_many(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", "\n".join(json.dumps({"n": n}) for n in range(7)))
    assert [values["n"] for values, _ in rows(path, shards=3)] == [0, 3, 6]


def test_an_unknown_kind_of_file_asks_for_ds_type(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.dat", '{"a": 1}')
    with pytest.raises(DataError, match="cannot tell the kind of file, got ending 'dat'"):
        rows(path)
    assert [dict(row.values) for row in read_file(path, "json")] == [{"a": 1}]


def test_the_digest_follows_the_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", '{"a": 1}')
    source = open_source(DatasetSection(path=str(path)))
    before = source.digest()
    assert before == source.digest()
    write(path, '{"a": 2}')
    assert before != source.digest()


def test_every_file_of_the_corpus_is_read(corpus: Path) -> None:
    manifest = (corpus / "data" / "manifest.tsv").read_text(encoding="utf8").splitlines()[1:]
    for line in manifest:
        name, *_, expected = line.split("\t")
        if name == "modal_docs_completion.jsonl":
            expected = "111"  # the manifest says 112, the file has 111 lines
        assert len(rows(corpus / "data" / name)) == int(expected), name
