"""`type: query_response`: `{"query": ..., "response": ..., "history": [[query, response], ...], "system": ...}`."""

from __future__ import annotations

from ftkit.data.formats.fields import Formatter, as_text, list_field, text_field
from ftkit.data.values import Conversation, Message, Row
from ftkit.errors import DataError
from ftkit.recipe.section.data import DatasetSection


def build(dataset: DatasetSection) -> Formatter:
    """A formatter of a question, its answer and the exchanges before them."""
    query, response = dataset.field_instruction or "query", dataset.field_output or "response"
    system, default = dataset.field_system or "system", dataset.system_prompt or ""

    def format_row(row: Row) -> Conversation:
        opening = text_field(row, system, optional=True) or default
        messages = [Message("system", opening)] if opening else []
        pairs = row.values.get("history") or ()
        for number, pair in enumerate(list_field(pairs, "column 'history'", row) if pairs else (), start=1):
            messages += _exchange(pair, number, row)
        messages += [Message("user", text_field(row, query)), Message("assistant", text_field(row, response))]
        return Conversation(tuple(messages), row.where)

    return format_row


def _exchange(pair: object, number: int, row: Row) -> list[Message]:
    texts = list_field(pair, f"history {number}", row)
    if len(texts) != 2:
        raise DataError(
            f"history {number} must be a query and a response, got {len(texts)} entries",
            where=str(row.where),
            help="mend or remove the row, or set bad_rows: skip",
        )
    return [Message(role, as_text(text, f"history {number}", row)) for role, text in zip(_ROLES, texts, strict=True)]


_ROLES = ("user", "assistant")
