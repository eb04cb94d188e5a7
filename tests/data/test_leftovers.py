"""What killed processes leave is taken away, and nothing that anybody works on or can take up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftkit.data.leftovers import COPY_SECONDS, KEPT_SECONDS, remove_leftovers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks there, so nothing is taken away")


def work(folder: Path, code: str | None, age: float = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "chunk-0").mkdir()
    if code is not None:
        progress = folder / "progress.json"
        progress.write_text(json.dumps({"code": code}), encoding="utf8")
        os.utime(progress, (time.time() - age,) * 2)
    return folder


def left(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob(".*.partial")}


def test_work_is_kept_while_this_version_can_go_on_with_it(tmp_path: Path) -> None:
    work(tmp_path / ".good.partial", "mine")
    work(tmp_path / ".other.partial", "another")
    work(tmp_path / ".begun.partial", None)
    work(tmp_path / ".old.partial", "mine", KEPT_SECONDS + 60)
    work(tmp_path / ".good.123.partial", "mine")
    (tmp_path / "ready").mkdir()
    remove_leftovers(tmp_path, "mine")
    assert left(tmp_path) == {".good.partial"}
    assert (tmp_path / "ready").is_dir()


def test_a_copy_that_nobody_writes_is_taken_away_after_an_hour(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    for name, age in (("new", 0), ("old", COPY_SECONDS + 60)):
        file = tmp_path / "downloads" / f".{name}.jsonl.1.partial"
        file.write_bytes(b"half")
        os.utime(file, (time.time() - age,) * 2)
    (tmp_path / "downloads" / "whole.jsonl").write_bytes(b"whole")
    remove_leftovers(tmp_path, "mine")
    assert {path.name for path in (tmp_path / "downloads").iterdir()} == {".new.jsonl.1.partial", "whole.jsonl"}


def test_what_a_living_process_holds_is_left_alone_until_it_dies(tmp_path: Path) -> None:
    for name in (".busy.partial", ".busy.77.partial"):
        work(tmp_path / name, None)
    copy = tmp_path / "downloads" / ".a.jsonl.77.partial"
    copy.parent.mkdir()
    copy.write_bytes(b"half")
    os.utime(copy, (time.time() - COPY_SECONDS - 60,) * 2)
    code = (
        "import fcntl, sys; files = [open(name, 'ab') for name in sys.argv[1:]]\n"
        "[fcntl.flock(file, fcntl.LOCK_EX) for file in files]; print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / ".busy.lock"), str(copy)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        remove_leftovers(tmp_path, "mine")
        assert left(tmp_path) == {".busy.partial", ".busy.77.partial", copy.name}
        other.kill()
    remove_leftovers(tmp_path, "mine")
    assert left(tmp_path) == set()
