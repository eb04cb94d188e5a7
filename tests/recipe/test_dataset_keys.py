"""The table of what each type reads is true of the formats."""

from __future__ import annotations

from typing import Any

import pytest

from ftkit import catalog
from ftkit.data.sources.local import READERS
from ftkit.recipe.dataset_keys import ENDINGS, OF_FORMAT, kind_of
from ftkit.recipe.section.data import DatasetSection


class Watched:
    """A data set's entry that remembers which keys were asked for."""

    def __init__(self, type_: Any) -> None:
        self.entry, self.asked = DatasetSection(path="rows.jsonl", type=type_), set[str]()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self.entry, name)


@pytest.mark.parametrize("name", catalog.FORMATS)
def test_a_format_reads_what_the_table_says(name: str) -> None:
    watched = Watched({"format": "{instruction}"} if name == "custom" else name)
    catalog.load(catalog.FORMATS[name])(watched)
    assert watched.asked - {"path", "type"} == OF_FORMAT[kind_of(name)]


def test_a_file_is_known_by_the_endings_that_can_be_read() -> None:
    assert set(READERS) == ENDINGS
