"""Data files of other places: http(s) by the standard library, all else (s3, gs, memory ...) through fsspec.

They are copied once into a folder beside the prepared data and read from there like any local file, so that sets larger
than memory work and every error still has its line. A copy is kept under its address and the server's own mark of its
content, and taken again while the two are the same.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ftkit.data.locks import hold
from ftkit.errors import DataError

SECONDS_TO_ANSWER = 10
CHUNK_BYTES = 1 << 20
PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}


def is_remote(path: str) -> bool:
    """Whether `path` is an address: a scheme and `://`."""
    return "://" in path


def fetch(address: str, data_files: Sequence[str], downloads: Path, endings: Collection[str]) -> Mapping[Path, str]:
    """Copy what `address` (and `data_files` under it) names, unless it is here already: local file -> its address.

    Args:
        downloads: the folder of the copies.
        endings: of file names that can be read; of a remote folder, others are left out.

    Raises:
        DataError: it is not there, cannot be reached, or its kind of address needs a package.
    """
    addresses = [f"{address.rstrip('/')}/{name}" for name in data_files] or [address]
    found: dict[Path, str] = {}
    try:
        for one in addresses:
            found |= (
                _from_web(one, downloads)
                if one.startswith(("http://", "https://"))
                else _through_fsspec(one, downloads, endings)
            )
    except ImportError as absent:
        kind = address.partition("://")[0]
        package = PACKAGES.get(kind)
        raise DataError(
            f"{kind}:// needs the package {package}, which is not installed"
            if package
            else f"this kind of address cannot be read: {absent}",
            where=address,
            help=f"pip install {package}" if package else "install what the message names, or copy the file here",
        ) from absent
    except ValueError as unknown:
        raise DataError(
            f"this kind of address cannot be read: {unknown}",
            where=address,
            help="use http(s)://, s3://, gs:// or another kind that fsspec knows, or copy the file here",
        ) from unknown
    except OSError as absent:
        raise DataError(
            f"the address cannot be read: {absent or type(absent).__name__}",
            where=address,
            help="check the address, the connection and your access to it",
        ) from absent
    return found


def _from_web(address: str, downloads: Path) -> dict[Path, str]:
    request = Request(address, headers={"User-Agent": "ftkit"})  # http and https only, see fetch
    with urlopen(request, timeout=SECONDS_TO_ANSWER) as answer:
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        target = _target(downloads, address, version or "", Path(urlsplit(address).path).name)
        if version is None or not target.is_file():
            length = answer.headers.get("Content-Length")
            _write(target, answer, int(length) if length else None)
    return {target: address}


def _through_fsspec(address: str, downloads: Path, endings: Collection[str]) -> dict[Path, str]:
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    system, path = fsspec.url_to_fs(address)
    if glob.has_magic(path):
        paths = system.glob(path)
    elif system.isdir(path):
        paths = [file for file in system.find(path) if file.rsplit(".", 1)[-1].lower() in endings]
    else:
        paths = [path]
    if not paths:
        raise FileNotFoundError("nothing is there")
    if isinstance(system, LocalFileSystem):
        return {_existing(Path(file)): str(file) for file in sorted(paths)}
    return dict(_copied(system, file, downloads) for file in sorted(paths))


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise FileNotFoundError(f"no such file, got {file}")
    return file


def _copied(system: Any, path: str, downloads: Path) -> tuple[Path, str]:
    address = str(system.unstrip_protocol(path))
    target = _target(downloads, address, str(system.ukey(path)), Path(path).name)
    if not target.is_file():
        opened: Callable[[], AbstractContextManager[Any]] = lambda: system.open(path, "rb")  # noqa: E731
        with opened() as source:
            _write(target, source, system.size(path))
    return target, address


def _target(downloads: Path, address: str, version: str, name: str) -> Path:
    """Where a copy lies: the same name only for the same address and content, its ending kept."""
    digest = hashlib.sha256(f"{address}\n{version}".encode()).hexdigest()[:16]
    return downloads / f"{digest}-{name}"


def _write(target: Path, source: Any, num_bytes: int | None) -> None:
    """Copy under a passing name, then rename: half a file never looks like a whole one.

    Args:
        num_bytes: that there are, if known.

    Raises:
        OSError: there came fewer; a connection that breaks off looks like the end.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    passing = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with passing.open("wb") as file:
            hold(file)
            shutil.copyfileobj(source, file, CHUNK_BYTES)
            if num_bytes is not None and file.tell() != num_bytes:
                raise OSError(f"the connection broke off after {file.tell():,} of {num_bytes:,} bytes")
        passing.replace(target)
    finally:
        passing.unlink(missing_ok=True)
