"""The data files of a folder: a plain one, a checked-out data set of the hub, or what `Dataset.save_to_disk` wrote.

Where files say by their name or folder which split they hold (`data/train-00000-of-00002.parquet`, `test/rows.jsonl`),
only those of the split asked for are taken; without such names every file belongs to train.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from ftkit.errors import DataError

SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
ABOUT_THE_DATA = frozenset({"dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"})
WORDS = re.compile(r"[a-z]+")


def files_of_folder(folder: Path, split: str, endings: Collection[str]) -> tuple[Path, ...]:
    """The files that hold rows of `split`, sorted.

    Args:
        endings: of file names that can be read.

    Raises:
        DataError: there are none.
    """
    if (folder / "dataset_dict.json").is_file() and (folder / split).is_dir():
        folder = folder / split
    if (folder / "state.json").is_file():
        return tuple(sorted(folder.glob("*.arrow")))
    files = [file for file in sorted(folder.rglob("*")) if _holds_rows(file, folder, endings)]
    if not files:
        raise DataError(
            f"the folder holds no data file, got {folder.absolute()}",
            where=str(folder),
            help=f"put a file there that ends in one of {', '.join(sorted(endings))}",
        )
    return of_split({file: file.relative_to(folder) for file in files}, split, str(folder))


def of_split(files: Mapping[Path, Path], split: str, folder: str) -> tuple[Path, ...]:
    """Those of a folder's files that hold `split`: all of them if none tells a split.

    Args:
        files: file -> its path below the folder.

    Raises:
        DataError: they tell splits, and this one is not among them.
    """
    named = {file: split_of(below) for file, below in files.items()}
    found = sorted({name for name in named.values() if name})
    chosen = tuple(file for file, name in named.items() if name == canonical(split)) if found else tuple(files)
    if not chosen:
        raise DataError(
            f"the folder's files hold no split {split!r}, got {', '.join(found)}",
            where=folder,
            help=f"set split to one of {', '.join(found)}, or name the files with data_files",
        )
    return chosen


def split_of(path: Path) -> str | None:
    """The split that a file's folders or name tell, the name first; None if they tell none."""
    for part in (path.stem, *reversed(path.parent.parts)):
        for word in WORDS.findall(part.lower()):
            for name, words in SPLITS.items():
                if word in words:
                    return name
    return None


def canonical(split: str) -> str:
    """The usual name of a split: `dev` -> `validation`; one that has none stays as it is."""
    return next((name for name, words in SPLITS.items() if split in words), split)


def _holds_rows(file: Path, folder: Path, endings: Collection[str]) -> bool:
    name = file.name.lower()
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    about = name in ABOUT_THE_DATA or name.startswith(("readme", "license"))
    return file.is_file() and file.suffix[1:].lower() in endings and not hidden and not about
