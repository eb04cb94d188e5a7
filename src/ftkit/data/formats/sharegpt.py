"""`type: sharegpt`: `{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}`."""

from __future__ import annotations

from ftkit.data.formats.fields import Formatter
from ftkit.data.formats.turns import turns_format
from ftkit.recipe.section.data import DatasetSection


def build(dataset: DatasetSection) -> Formatter:
    """A formatter of sharegpt rows."""
    return turns_format(dataset, column="conversations", role_key="from", content_key="value")
