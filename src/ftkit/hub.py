"""The model hub from outside: whether it answers, what of it lies here already, and files that never came.

The hub's own library tries five times, twenty seconds in all, before it says that there is no network; these functions
ask once, so that a run without one ends, or goes on from the cache, within seconds.
"""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

SECONDS_TO_ANSWER = 3
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def why_silent() -> str | None:
    """Why the hub cannot be asked now; None when it answers."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "offline: HF_HUB_OFFLINE is set"
    request = Request(constants.ENDPOINT, method="HEAD")  # the hub's own address
    try:
        urlopen(request, timeout=SECONDS_TO_ANSWER).close()
    except HTTPError:
        return None  # it answers, if only that it has no such page
    except OSError as silent:
        return f"offline: {constants.ENDPOINT} does not answer: {getattr(silent, 'reason', silent)}"
    return None


def is_cached(repository: str, files: tuple[str, ...], revision: str | None) -> bool:
    """Whether the hub's cache holds one of `files` of `repository`."""
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(repository, file, revision=revision), str) for file in files)


def is_lfs_pointer(file: Path) -> bool:
    """Whether `file` is what git leaves in place of a large file that was not fetched."""
    with file.open("rb") as opened:
        return opened.read(len(LFS_POINTER)) == LFS_POINTER
