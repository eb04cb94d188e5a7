"""What killed processes left in the folder of prepared data: taken away where nobody works on it or can take it up.

.KEY.partial            work on a part (`partial.py`): kept while this version can go on with it
.KEY.PID.partial        a finished part on its way to its own name: whole work is beside it or done again
downloads/.*.partial    a copy of a remote file that was not finished

Whoever writes one of them holds a lock that the system frees when the process dies, so a lock that can be had says that
nobody is there. Without such locks (Windows) nothing is taken away.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from ftkit.data.locks import tried
from ftkit.data.partial import PROGRESS

KEPT_SECONDS = 30 * 24 * 3600  # work that nobody took up for so long
COPY_SECONDS = 3600  # between opening a copy and locking it no process takes as long


def remove_leftovers(cache_dir: Path, code: str) -> None:
    """Take away what is of no more use.

    Args:
        code: of this version (`cache.code_digest`); what another version began cannot be gone on with.
    """
    if sys.platform == "win32":
        return
    for folder in cache_dir.glob(".*.partial"):
        key = folder.name.split(".")[1]
        with (cache_dir / f".{key}.lock").open("w") as lock, tried(lock) as is_ours:
            if is_ours and not (folder.name == f".{key}.partial" and _can_go_on(folder, code)):
                shutil.rmtree(folder, ignore_errors=True)
    for copy in (cache_dir / "downloads").glob(".*.partial"):
        try:
            with copy.open("rb") as file, tried(file) as is_ours:
                if is_ours and time.time() - copy.stat().st_mtime > COPY_SECONDS:
                    copy.unlink(missing_ok=True)
        except FileNotFoundError:  # finished and renamed meanwhile
            continue


def _can_go_on(folder: Path, code: str) -> bool:
    try:
        progress = folder / PROGRESS
        is_known = json.loads(progress.read_text(encoding="utf8")).get("code") == code
        return is_known and time.time() - progress.stat().st_mtime < KEPT_SECONDS
    except (OSError, ValueError, AttributeError):
        return False
