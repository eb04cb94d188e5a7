"""Chat templates that other tools carry for a model family: ftkit takes the one of the model's own tokenizer."""

from __future__ import annotations

from ftkit.recipe.edits import change, value_at
from ftkit.recipe.source import Path, Source

FAMILIES = """
aya cohere command_a command_a_rag command_a_tool_use deepseek_v3 exaone exaone4 falcon_h1 gemma3n gemma4
gemma4_unified jamba llama3_2_vision llama4 llava mistral_v2v3 mistral_v3_tekken mistral_v7_tekken nemotron_h
pixtral qwen2_vl qwen3 qwen3_5 smolvlm2 glm4 lfm2
"""  # a word each
OF_A_FAMILY = frozenset(FAMILIES.split())
RENAMED = {"inst": "mistral_v1"}


def chat_templates(source: Source) -> None:
    """Take the tokenizer's template where a family's is named; a migration like those in `migrations.py`."""
    for path in [("chat_template",), *paths_in_datasets(source)]:
        name = value_at(source.data, path)
        new = RENAMED.get(name, "tokenizer_default" if name in OF_A_FAMILY else None) if isinstance(name, str) else None
        if new is None:
            continue
        change(source, path, new)
        message = f"chat template {name} is taken from the model's own tokenizer"
        message = message if new == "tokenizer_default" else f"chat template {name} is called {new} here"
        source.note("migrated", path, message, "`ftkit migrate` rewrites the file", severity="note")


def paths_in_datasets(source: Source) -> list[Path]:
    """Where data sets may name a chat template."""
    lists = [(key, source.data.get(key)) for key in ("datasets", "test_datasets")]
    return [
        (key, i, "chat_template") for key, entries in lists if isinstance(entries, list) for i in range(len(entries))
    ]
