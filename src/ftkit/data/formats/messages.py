"""`type: chat_template`: OpenAI's `{"messages": [{"role": "user", "content": ...}, ...]}`."""

from __future__ import annotations

from ftkit.data.formats.fields import Formatter
from ftkit.data.formats.turns import turns_format
from ftkit.recipe.section.data import DatasetSection


def build(dataset: DatasetSection) -> Formatter:
    """A formatter of rows of messages."""
    return turns_format(dataset, column="messages", role_key="role", content_key="content")
