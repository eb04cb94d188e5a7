from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
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


@pytest.mark.parametrize("form", ['{"a": %s}', '[{"a": %s}]', '{"a":\n%s}'])
def test_json_nested_too_deep_names_the_line(tmp_path: Path, form: str) -> None:
    path = write(tmp_path / "rows.jsonl", form % ("[" * 100_000 + "]" * 100_000))
    with pytest.raises(DataError, match=r"rows.jsonl:1: JSON nested too deep to be read\nhelp: mend this line"):
        rows(path)


def test_csv_cells_are_text_as_written(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", b'\xef\xbb\xbfa,b\r\n007,"x,\r\ny"\r\n\r\n,NA\r\n')
    assert rows(path) == [({"a": "007", "b": "x,\r\ny"}, "2"), ({"a": "", "b": "NA"}, "5")]


def test_a_csv_cell_may_be_long(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", f"text,b\n{'x' * 200_000},y\n")
    assert len(rows(path)[0][0]["text"]) == 200_000


def test_a_csv_column_named_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "\ntext,label,text\na,b,c\n")
    with pytest.raises(DataError, match=r"rows.csv:2: the header names a column twice, got 'text'"):
        rows(path)


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


class Silent(BaseHTTPRequestHandler):
    """Serves the files of a folder with their bytes' length as the mark of their content, and says nothing."""

    folder: Path

    def do_GET(self) -> None:
        file = self.folder / self.path.partition("?")[0].lstrip("/")
        if not file.is_file():
            return self.send_error(404)
        self.send_response(200)
        self.send_header("ETag", str(file.stat().st_size))
        content = file.read_bytes()
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if file.suffix == ".half" else content)
        return None

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An address that serves the files of a folder, and the folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = type("Handler", (Silent,), {"folder": folder})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}", folder
        serving.shutdown()
        thread.join()


def test_a_hub_that_does_not_answer_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        rows("abacusai/SystemChat")
    assert time.monotonic() - start < 10  # the import of `datasets` is the most of it
    assert str(caught.value) == (
        "abacusai/SystemChat: neither a local file nor a data set of the hub that can be read now, "
        "got abacusai/SystemChat (offline: http://127.0.0.1:9 does not answer: [Errno 111] Connection refused)\n"
        "help: for a local file give its path; for a hub id check the name, the connection and HF_HUB_OFFLINE"
    )


def test_a_hub_id_that_does_not_exist_says_so(monkeypatch: pytest.MonkeyPatch, server: tuple[str, Path]) -> None:
    import datasets
    from huggingface_hub import constants

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no such data set")

    monkeypatch.setattr(constants, "ENDPOINT", server[0])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match=r"got abacusai/SystemChat \(no such data set\)"):
        rows("abacusai/SystemChat")


@pytest.mark.parametrize(
    ("split", "kept"),
    [(None, "0123456789"), ("train[2:5]", "234"), ("train[:20%]", "01"), ("train[-1:]+extra", "9xy"), ("extra", "xy")],
)
def test_rows_of_the_hub_are_streamed_without_a_copy(
    monkeypatch: pytest.MonkeyPatch, server: tuple[str, Path], tmp_path: Path, split: str | None, kept: str
) -> None:
    import datasets
    from huggingface_hub import constants

    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in "0123456789"))
    write(folder / "extra.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in "xy"))
    files = {"train": str(folder / "train.jsonl"), "extra": str(folder / "extra.jsonl")}
    builder = datasets.load_dataset_builder("json", data_files=files, cache_dir=str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", server[0])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda path, **_: builder)  # a hub at hand
    source = open_source(DatasetSection(path="abacusai/SystemChat", split=split), streaming=True)
    assert "".join(row.values["text"] for row in source.rows()) == kept
    assert next(source.rows()).where.file == "abacusai/SystemChat"
    assert source.count() is None
    assert source.digest() == open_source(DatasetSection(path="abacusai/SystemChat"), streaming=True).digest()
    assert not list((tmp_path / "cache").rglob("*.arrow"))


def test_a_stream_without_the_split_asked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, server: tuple[str, Path], tmp_path: Path
) -> None:
    import datasets
    from huggingface_hub import constants

    file = write(tmp_path / "train.jsonl", '{"text": "a"}\n')
    builder = datasets.load_dataset_builder("json", data_files=str(file), cache_dir=str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", server[0])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda path, **_: builder)
    source = open_source(DatasetSection(path="abacusai/SystemChat", split="validation"), streaming=True)
    with pytest.raises(DataError, match=r"cannot be read as asked: Bad split: validation") as caught:
        next(source.rows())
    assert "help: check name, split and data_files of this data set" in str(caught.value)


def remote(address: str, downloads: Path, **keys: Any) -> list[tuple[Any, str]]:
    found = open_source(DatasetSection(path=address, **keys), downloads).rows()
    return [(dict(row.values), str(row.where)) for row in found]


def test_a_file_of_the_web_is_read_and_copied_once(tmp_path: Path, server: tuple[str, Path]) -> None:
    address, folder = server
    write(folder / "rows.jsonl", '{"a": "007"}\n')
    for query in ("", "?download=true"):
        url = f"{address}/rows.jsonl{query}"
        assert remote(url, tmp_path / "copies") == [({"a": "007"}, f"{url}:1")]
    assert remote(f"{address}/rows.jsonl", tmp_path / "copies")
    assert len(list((tmp_path / "copies").iterdir())) == 2
    write(folder / "rows.jsonl", '{"a": "1"}\n{"a": "2"}\n')
    assert [row["a"] for row, _ in remote(f"{address}/rows.jsonl", tmp_path / "copies")] == ["1", "2"]


def test_the_digest_of_a_remote_file_follows_its_bytes_not_its_copy(tmp_path: Path, server: tuple[str, Path]) -> None:
    address, folder = server
    write(folder / "rows.jsonl", '{"a": 1}')
    dataset = DatasetSection(path=f"{address}/rows.jsonl")
    assert open_source(dataset, tmp_path / "one").digest() == open_source(dataset, tmp_path / "two").digest()


def test_an_address_without_a_file_is_an_error(tmp_path: Path, server: tuple[str, Path]) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl: the address cannot be read: HTTP Error 404: Not Found"):
        remote(f"{server[0]}/rows.jsonl", tmp_path)


def test_addresses_of_fsspec_are_read(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("train-0.jsonl", "train-1.jsonl", "test-0.jsonl", "README.md"):
        memory.pipe(f"/corpus/{name}", json.dumps({"a": name}).encode())
    assert remote("memory://corpus/test-0.jsonl", tmp_path) == [
        ({"a": "test-0.jsonl"}, "memory:///corpus/test-0.jsonl:1")
    ]
    names = [row["a"] for row, _ in remote("memory://corpus/*-0.jsonl", tmp_path)]
    assert names == ["test-0.jsonl", "train-0.jsonl"]
    assert [row["a"] for row, _ in remote("memory:///corpus", tmp_path, ds_type="json")] == [
        "train-0.jsonl",
        "train-1.jsonl",
    ]
    files = remote("memory://corpus", tmp_path, data_files=("test-0.jsonl",))
    assert [row["a"] for row, _ in files] == ["test-0.jsonl"]


def test_a_file_address_is_read_in_place(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", '{"a": 1}')
    assert remote(f"file://{path}", tmp_path / "copies") == [({"a": 1}, f"{path}:1")]
    assert not (tmp_path / "copies").exists()
    with pytest.raises(DataError, match="the address cannot be read: no such file"):
        remote(f"file://{tmp_path}/none.jsonl", tmp_path)


def test_half_a_file_is_an_error_and_is_not_kept(tmp_path: Path, server: tuple[str, Path]) -> None:
    address, folder = server
    write(folder / "rows.jsonl.half", '{"a": 1}\n' * 100)
    with pytest.raises(DataError, match=r"cannot be read: the connection broke off after 450 of 900 bytes"):
        remote(f"{address}/rows.jsonl.half", tmp_path / "copies")
    assert not list((tmp_path / "copies").iterdir())


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is there")
def test_an_address_that_needs_a_package_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        remote("s3://bucket/rows.jsonl", tmp_path)
    assert str(caught.value) == (
        "s3://bucket/rows.jsonl: s3:// needs the package s3fs, which is not installed\nhelp: pip install s3fs"
    )


def test_an_address_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this kind of address cannot be read: Protocol not known: nowhere"):
        remote("nowhere://bucket/rows.jsonl", tmp_path)


def test_a_folder_with_splits_gives_the_one_asked_for(tmp_path: Path) -> None:
    for name in ("data/train-00000-of-00001.jsonl", "data/test.jsonl", "validation/rows.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "\n".join(json.dumps({"a": name[:6] + str(number)}) for number in range(4)))
    write(tmp_path / "README.md", "about")
    write(tmp_path / "dataset_infos.json", "{}")

    def given(**keys: Any) -> list[str]:
        return [row["a"] for row in (row for row, _ in rows(tmp_path, **keys))]

    assert given() == given(split="train")
    assert len(given()) == 4
    assert given(split="test[:2]") == ["data/t0", "data/t1"]
    assert given(split="dev[75%:]+test[:1]") == ["valida3", "data/t0"]
    with pytest.raises(DataError, match="files hold no split 'holdout', got test, train, validation"):
        given(split="holdout")


def test_what_datasets_saved_is_read(tmp_path: Path) -> None:
    import datasets

    splits = {"train": [{"text": "007"}, {"text": "b"}], "test": [{"text": "c"}]}
    made = datasets.DatasetDict({name: datasets.Dataset.from_list(own) for name, own in splits.items()})
    made.save_to_disk(tmp_path / "both")
    made["train"].save_to_disk(tmp_path / "one")
    assert [row["text"] for row, _ in rows(tmp_path / "both")] == ["007", "b"]
    assert [row["text"] for row, _ in rows(tmp_path / "both", split="test")] == ["c"]
    assert [row["text"] for row, _ in rows(tmp_path / "one", split="train[1:]")] == ["b"]


def test_files_are_read_alike_under_any_locale(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", '{"a": "é 你好"}')
    write(tmp_path / "rows.txt", "é 你好")
    code = (
        "import sys; from ftkit.data.sources.source import open_source\n"
        "from ftkit.recipe.section.data import DatasetSection\n"
        "for name in sys.argv[1:]:\n"
        "    print([ascii(dict(r.values)) for r in open_source(DatasetSection(path=name)).rows()])"
    )
    where = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, str(tmp_path / "rows.jsonl"), str(tmp_path / "rows.txt")]
    out = subprocess.run(command, env=where, capture_output=True, text=True, check=True).stdout
    assert out.count("\\\\xe9 \\\\u4f60\\\\u597d") == 2


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


def test_a_file_is_no_split_but_train_unless_its_name_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()  # the folder of this test has "test" in its name
    plain = write(tmp_path / "data" / "rows.jsonl", '{"a": 1}\n')
    named = write(tmp_path / "data" / "rows_test.jsonl", '{"a": 2}\n')
    assert rows(plain, split="train")[0][0] == {"a": 1}
    assert rows(named, split="test")[0][0] == {"a": 2}
    for split in ("test", "train+dev[:10]"):
        with pytest.raises(DataError, match=r"are the split train, got split '(test|dev)'\nhelp: take split out"):
            rows(plain, split=split)


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
