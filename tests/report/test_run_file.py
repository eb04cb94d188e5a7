from __future__ import annotations

import json
import math
import platform
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from ftkit.report.run_file import RunRecord, machine, plain, versions, write_run_file


def written(path: Path, record: RunRecord) -> dict[str, Any]:
    write_run_file(path, record)

    def refuse(constant: str) -> float:
        raise AssertionError(f"not JSON: {constant}")

    return json.loads(path.read_text(encoding="utf8"), parse_constant=refuse)  # type: ignore[no-any-return]


def test_the_record_comes_back_with_versions_and_machine(tmp_path: Path) -> None:
    record = RunRecord(
        settings={"training": {"seed": 42}},
        substitutions=[{"key": "bf16", "asked": "true", "used": "fp32", "reason": "no fast bfloat16"}],
        timings={"train": 12.5},
        result={"last_loss": 0.5},
        samples=[{"prompt": "Wer bist du?", "before": "", "after": "Zaunkönig \N{BIRD}"}],
    )
    values = written(tmp_path / "run.json", record)
    assert values["settings"] == {"training": {"seed": 42}}
    assert values["substitutions"][0]["key"] == "bf16"
    assert values["timings"] == {"train": 12.5}
    assert values["samples"][0]["after"] == "Zaunkönig \N{BIRD}"
    assert values["versions"]["torch"] == metadata.version("torch")
    assert values["machine"]["processor"] == platform.machine()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_what_json_has_no_word_for_is_null_or_text(tmp_path: Path) -> None:
    values = {"nan": math.nan, "path": PurePosixPath("a/b"), "tuple": (1, math.inf), "yes": True, 3: None}
    assert plain(values) == {"nan": None, "path": "a/b", "tuple": [1, None], "yes": True, "3": None}
    assert written(tmp_path / "run.json", RunRecord(settings=values))["settings"]["path"] == "a/b"


def test_half_a_surrogate_pair_does_not_lose_the_record(tmp_path: Path) -> None:
    answer = {"prompt": "hi", "before": "", "after": "\ud83d"}
    assert written(tmp_path / "run.json", RunRecord(settings={}, samples=[answer]))["samples"][0]["after"] == "?"


def test_nothing_names_the_machine_or_its_user() -> None:
    text = json.dumps([versions(), machine()])
    assert platform.node() not in text
    assert str(Path.home()) not in text
