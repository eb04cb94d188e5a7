from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ftkit.data.mask_report import mask_report
from ftkit.data.prepare import Prepared, prepare
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection


def mixed(folder: Path, tokenizer: Any, weights: dict[str, tuple[int, float | None]], seed: int = 1) -> Prepared:
    datasets = []
    for name, (num_rows, weight) in weights.items():
        path = folder / f"{name}.jsonl"
        path.write_text("\n".join(json.dumps({"text": f"{name} {number}"}) for number in range(num_rows)), "utf8")
        datasets.append(DatasetSection(path=str(path), type="completion", weight=weight))
    data = DataSection(datasets=tuple(datasets), sequence_len=64)
    return prepare(data, tokenizer, cache_dir=None, sequence_len=64, seed=seed)


def names(prepared: Prepared) -> Counter[str]:
    return Counter(Path(example.where.file).stem for example in prepared.train)


def test_documents_stand_in_the_proportion_of_the_weights(tmp_path: Path, chatml: Any) -> None:
    result = mixed(tmp_path, chatml, {"a": (30, 0.5), "b": (100, 0.3), "c": (90, 0.2)})
    assert names(result) == {"a": 30, "b": 18, "c": 12}
    assert [account.mixed for account in result.report.train.sets] == [30, 18, 12]
    assert mask_report(result.report.train.sets[1])["used by its weight"] == "18 of 100 documents"
    lines = [(example.where.file, example.where.line) for example in result.train]
    assert lines == sorted(set(lines))


def test_the_choice_follows_the_seed(tmp_path: Path, chatml: Any) -> None:
    one, same, other = (
        [example.where.line for example in mixed(tmp_path, chatml, {"a": (5, 1), "b": (50, 1)}, seed).train]
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_without_weights_every_document_is_used(tmp_path: Path, chatml: Any) -> None:
    assert names(mixed(tmp_path, chatml, {"a": (3, None), "b": (7, None)})) == {"a": 3, "b": 7}


def test_a_weight_beside_none_is_refused(tmp_path: Path, chatml: Any) -> None:
    with pytest.raises(DataError, match=r"b.jsonl: some data sets of the mixture have a weight and this one has none"):
        mixed(tmp_path, chatml, {"a": (3, 1), "b": (7, None)})


def test_weights_count_what_shards_leave_and_shards_part_the_set(tmp_path: Path, chatml: Any) -> None:
    for name, num_rows in {"a": 41, "b": 30}.items():
        rows = "\n".join(json.dumps({"text": f"{name} {number}"}) for number in range(num_rows))
        (tmp_path / f"{name}.jsonl").write_text(rows, "utf8")

    def run(index: int, weight: float) -> Prepared:
        a = DatasetSection(path=str(tmp_path / "a.jsonl"), type="completion", shards=4, shards_idx=index, weight=weight)
        b = DatasetSection(path=str(tmp_path / "b.jsonl"), type="completion", weight=1)
        data = DataSection(datasets=(a, b), sequence_len=64)
        return prepare(data, chatml, cache_dir=tmp_path / "cache", sequence_len=64, seed=1)

    parts = [run(index, 1) for index in range(4)]
    assert [names(part) for part in parts] == [{"a": 11, "b": 11}, *[{"a": 10, "b": 10}] * 3]
    lines = [[one.where.line for one in part.train if one.where.file.endswith("a.jsonl")] for part in parts]
    assert lines == [list(range(index + 1, 42, 4)) for index in range(4)]
    other = run(0, 0.5)
    assert other.report.train.cache == "hit"  # the choice is made from documents that are prepared already
    assert names(other) == {"a": 11, "b": 22}
