"""Preparing holds a piece of a data set at a time: memory of the process's own (RssAnon) does not grow with the set.

Maps of files are left out of account: the system drops their pages whenever it needs the room.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RssAnon is Linux's own count")
MEGABYTE = 1 << 20
# Prepares and packs each of the data sets, and writes the peak of RssAnon above what there was before, in bytes.
MEASURE = """
import json, sys, threading
from pathlib import Path
from transformers import AutoTokenizer
from ftkit.data.packing import pack
from ftkit.data.prepare import prepare
from ftkit.recipe.section.data import DataSection, DatasetSection

def own():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

def watch(peak, stop):
    while not stop.wait(0.002):
        peak[0] = max(peak[0], own())

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
for number, path in enumerate(sys.argv[4:]):
    before, stop = own(), threading.Event()
    peak = [before]
    watcher = threading.Thread(target=watch, args=(peak, stop), daemon=True)
    watcher.start()
    data = DataSection(datasets=(DatasetSection(path=path, **json.loads(sys.argv[3])),), val_set_size=0.01)
    made = prepare(data, tokenizer, cache_dir=Path(sys.argv[2]), sequence_len=4096, seed=1)
    packs = pack(made.train.lengths, 4096)
    peak[0] = max(peak[0], own())
    stop.set()
    watcher.join()
    print(json.dumps([peak[0] - before, made.report.tokens, len(made.train), len(packs)]), flush=True)
"""


def measured(tokenizer: Path, cache: Path, paths: list[Path], **keys: Any) -> list[tuple[int, int, int, int]]:
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", MEASURE, str(tokenizer), str(cache), json.dumps(keys), *map(str, paths)]
    said = subprocess.run(command, env=where, check=True, stdout=subprocess.PIPE, text=True, timeout=500).stdout
    return [tuple(json.loads(line)) for line in said.splitlines()]


def write_array(path: Path, rows: Iterator[dict[str, Any]], between: str = ",") -> Path:
    with path.open("w", encoding="utf8") as file:
        file.write("[")
        for number, row in enumerate(rows):
            file.write((between if number else "") + json.dumps(row, separators=(",", ":")))
        file.write("]")
    return path


def tokens(num_rows: int) -> Iterator[dict[str, Any]]:
    return ({"input_ids": [5, 6, 7, 8] * 1000} for _ in range(num_rows))


def test_memory_does_not_grow_with_an_array_of_rows(tmp_path: Path, bare_folder: Path) -> None:
    small, large = (write_array(tmp_path / f"{size}.json", tokens(size)) for size in (500, 3000))
    assert large.stat().st_size - small.stat().st_size > 18 * MEGABYTE
    results = measured(bare_folder, tmp_path / "cache", [small, large])
    assert [result[1] for result in results] == [2_000_000, 12_000_000]
    (first, *_), (second, *_) = results
    # The file's text alone would take 19 MB more, its tokens and their mask 50; a chunk of tokens takes 20 and not 10.
    assert second - first < 16 * MEGABYTE, results


def words(num_bytes: int) -> Iterator[dict[str, Any]]:
    """Rows whose text is a tenth of them: what is read costs little time, what is tokenized much."""
    chance = random.Random(0)
    known = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(5000)]
    while num_bytes > 0:
        row = {
            "text": " ".join(chance.choices(known, k=40)),
            "source": " ".join(chance.choices(known, k=chance.randint(50, 700))),
        }
        num_bytes -= len(row["text"]) + len(row["source"])
        yield row


def written(kind: str, path: Path, num_bytes: int) -> Path:
    if kind == "json":
        return write_array(path, words(num_bytes))
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in words(num_bytes)), encoding="utf8")
        return path
    import pyarrow
    from pyarrow import ipc, parquet

    table = pyarrow.Table.from_pylist(list(words(num_bytes)))
    if kind == "parquet":
        parquet.write_table(table, path)  # one row group, the worst case
    else:
        with ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["json", "jsonl", "parquet", "arrow"])
def test_memory_does_not_grow_from_50_to_200_megabytes_of_text(tmp_path: Path, bare_folder: Path, kind: str) -> None:
    files = [written(kind, tmp_path / f"{size}.{kind}", size * MEGABYTE) for size in (50, 200)]
    results = measured(bare_folder, tmp_path / "cache", files, type="completion")
    (first, *_), (second, *_) = results
    assert second - first < 50 * MEGABYTE, results
