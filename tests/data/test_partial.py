"""Preparing that is killed goes on where it was, and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ftkit.data.partial import ROWS_PER_CHUNK
from ftkit.data.prepare import Prepared, prepare
from ftkit.data.sources import hub
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection

ROWS = ROWS_PER_CHUNK * 2 + 700


class KilledError(Exception):
    """Stands for a kill between two batches."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("rows")
    texts = [[{"text": f"row {number % 9000}" if number % 7 else None} for number in range(ROWS)], [{"text": "last"}]]
    paths = [folder / "a.jsonl", folder / "b.jsonl"]
    for path, rows in zip(paths, texts, strict=True):
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf8")
    return paths


def made(
    files: list[Path], tokenizer: Any, cache: Path | None, on_progress: Callable[[int, int | None], None], **keys: Any
) -> Prepared:
    datasets = tuple(DatasetSection(path=str(path), type="completion") for path in files)
    data = DataSection(**{"datasets": datasets, "bad_rows": "skip", **keys})
    return prepare(data, tokenizer, cache_dir=cache, sequence_len=64, seed=1, on_progress=on_progress)


def test_a_killed_run_is_taken_up_and_ends_like_one_that_was_not(
    tmp_path: Path, files: list[Path], chatml: Any
) -> None:
    def kill(rows: int, _: int | None) -> None:
        if rows > ROWS_PER_CHUNK * 1.5:
            raise KilledError

    keys = {"dataset_exact_deduplication": True}
    with pytest.raises(KilledError):
        made(files, chatml, tmp_path, kill, **keys)
    told = list[int]()
    resumed = made(files, chatml, tmp_path, lambda rows, _: told.append(rows), **keys)
    assert min(told) > ROWS_PER_CHUNK
    assert "rows were taken over from a run that was stopped" in resumed.report.train.cache
    whole = made(files, chatml, None, lambda rows, _: None, **keys)
    for name in ("tokens", "trained", "borders", "origins"):
        assert np.array_equal(getattr(resumed.train, name), getattr(whole.train, name)), name
    assert resumed.train.files == whole.train.files
    assert resumed.report.train.sets == whole.report.train.sets
    assert resumed.report.train.rejected == whole.report.train.rejected
    assert not list(tmp_path.glob("*.partial"))
    assert made(files, chatml, tmp_path, lambda rows, _: None, **keys).report.train.cache.startswith("hit")


@pytest.mark.parametrize("name", ["progress.json", "chunk-0/tokens.npy", "chunk-0/rejected.jsonl"])
def test_work_that_the_disk_spoilt_is_begun_anew(tmp_path: Path, files: list[Path], chatml: Any, name: str) -> None:
    def kill(rows: int, _: int | None) -> None:
        if rows > ROWS_PER_CHUNK * 1.2:
            raise KilledError

    with pytest.raises(KilledError):
        made(files, chatml, tmp_path, kill)
    (file,) = tmp_path.glob(f".*.partial/{name}")
    file.write_bytes(file.read_bytes()[:-9])
    assert made(files, chatml, tmp_path, lambda rows, _: None).report.train.cache.startswith("miss: nothing like it")


def test_conversations_are_compared_with_inference_as_often_as_without_the_kill(tmp_path: Path, chatml: Any) -> None:
    path = tmp_path / "rows.jsonl"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "c"}]
    path.write_text("\n".join([json.dumps({"messages": turns})] * (ROWS_PER_CHUNK + 700)), encoding="utf8")
    data = DataSection(datasets=(DatasetSection(path=str(path), type="chat_template"),), chat_template="chatml")

    def kill(rows: int, _: int | None) -> None:
        if rows > ROWS_PER_CHUNK:
            raise KilledError

    def run(cache: Path | None, on_progress: Callable[[int, int | None], None]) -> Prepared:
        return prepare(data, chatml, cache_dir=cache, sequence_len=64, seed=1, on_progress=on_progress)

    with pytest.raises(KilledError):
        run(tmp_path / "cache", kill)
    resumed, whole = run(tmp_path / "cache", lambda rows, _: None), run(None, lambda rows, _: None)
    assert "taken over" in resumed.report.train.cache
    assert resumed.report.train.sets == whole.report.train.sets


def test_other_settings_do_not_take_the_work_up(tmp_path: Path, files: list[Path], chatml: Any) -> None:
    def kill(rows: int, _: int | None) -> None:
        if rows > ROWS_PER_CHUNK * 1.1:
            raise KilledError

    with pytest.raises(KilledError):
        made(files, chatml, tmp_path, kill)
    other = made(files, chatml, tmp_path, lambda rows, _: None, min_sample_len=3)
    assert "taken over" not in other.report.train.cache


def test_work_on_rows_that_cannot_be_used_is_not_kept(tmp_path: Path, chatml: Any) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"text": "x"}] * (ROWS_PER_CHUNK + 600) + [{"text": None}]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf8")
    with pytest.raises(DataError):
        made([path], chatml, tmp_path / "cache", lambda rows, _: None, bad_rows="error")
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_a_stream_that_breaks_off_is_gone_on_with(tmp_path: Path, chatml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from huggingface_hub import constants

    class Builder:
        """Stands for a data set of the hub; its connection breaks off once."""

        info, hash, config_id = SimpleNamespace(splits=None), "commit", "default"
        breaks_after: int | None = ROWS_PER_CHUNK + 900

        def as_streaming_dataset(self, split: str) -> Iterator[dict[str, str]]:
            for number in range(ROWS_PER_CHUNK + 1500):
                if number == self.breaks_after:
                    raise ConnectionError("reset by peer")
                yield {"text": f"row {number}"}

    builder = Builder()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "why_silent", lambda: None)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda path, **_: builder)
    entry = DatasetSection(path="owner/name", type="completion")
    data = DataSection(datasets=(entry,), streaming=True)
    with pytest.raises(
        DataError, match=r"the hub was lost while its rows were read: reset by peer\nhelp: run the same"
    ):
        prepare(data, chatml, cache_dir=tmp_path, sequence_len=64, seed=1)
    builder.breaks_after = None
    made = prepare(data, chatml, cache_dir=tmp_path, sequence_len=64, seed=1)
    assert "rows were taken over from a run that was stopped" in made.report.train.cache
    assert [example.where.line for example in made.train] == list(range(1, ROWS_PER_CHUNK + 1501))


def test_a_process_that_dies_leaves_its_lock_and_its_work(tmp_path: Path, files: list[Path], bare_folder: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from transformers import AutoTokenizer\n"
        "from ftkit.data.prepare import prepare; from ftkit.recipe.section.data import DataSection, DatasetSection\n"
        "*paths, folder, cache, slow = sys.argv[1:]\n"
        "sets = tuple(DatasetSection(path=path, type='completion') for path in paths)\n"
        "data = DataSection(datasets=sets, bad_rows='skip')\n"
        "def tell(rows, expected):\n"
        f"    if slow == 'slow' and rows > {ROWS_PER_CHUNK}: print(rows, flush=True); time.sleep(60)\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        "made = prepare(data, tokenizer, cache_dir=Path(cache), sequence_len=64, seed=1, on_progress=tell)\n"
        "print(made.report.train.cache, len(made.train))\n"
    )
    command = [sys.executable, "-c", code, *map(str, files), str(bare_folder), str(tmp_path)]
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "HF_HUB_OFFLINE": "1"}
    first = subprocess.Popen([*command, "slow"], env=where, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    first.stdout.readline()
    second = subprocess.Popen([*command, "fast"], env=where, stdout=subprocess.PIPE, text=True)
    time.sleep(0.5)  # the second comes to wait at the lock
    first.send_signal(signal.SIGKILL)
    first.communicate()
    said = second.communicate(timeout=60)[0]
    assert "rows were taken over from a run that was stopped" in said
    assert said.split()[-1] == str(sum(1 for number in range(ROWS) if number % 7) + 1)
