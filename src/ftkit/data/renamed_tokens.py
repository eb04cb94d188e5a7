"""`added_tokens_overrides`: another text for tokens that a tokenizer reserves, at the same ids.

A tokenizer has no call for that, so its files are written, changed and read again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftkit.errors import DataError


def rename_tokens(tokenizer: Any, texts: Mapping[str, Any]) -> Any:
    """Return `tokenizer` with the tokens of the ids in `texts` called as it says.

    Raises:
        DataError: an id is not one of an added token, a text is taken, or the tokenizer has no tokenizer.json.
    """
    old = {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}
    new = {int(number): str(text) for number, text in texts.items() if number.isdecimal()}
    taken = tokenizer.get_vocab()
    wrong = [f"{number}: {text}" for number, text in texts.items() if not number.isdecimal() or int(number) not in old]
    wrong += [
        f"{number}: {text}" for number, text in new.items() if number in old and taken.get(text, number) != number
    ]
    if wrong or len(set(new.values())) < len(new):
        raise DataError(
            f"these tokens cannot have another text, got {', '.join(wrong) or 'one text twice'}",
            where="added_tokens_overrides",
            help=f"give ids of added tokens ({min(old, default=0)} to {max(old, default=0)}), each a text of its own",
        )
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise DataError(
                "this tokenizer has no tokenizer.json, so its tokens cannot be renamed",
                where="added_tokens_overrides",
                help="use a fast tokenizer, or add the texts under `tokens`",
            )
        names = {old[number]: text for number, text in new.items()}
        rename_in_tokenizer(file, new, names)
        rename_in_settings(Path(folder) / "tokenizer_config.json", names)
        renamed = type(tokenizer).from_pretrained(folder)
    renamed.name_or_path = tokenizer.name_or_path
    return renamed


def rename_in_tokenizer(file: Path, new: Mapping[int, str], names: Mapping[str, str]) -> None:
    """Change tokenizer.json: the added tokens, and their entries in the model's vocabulary."""
    content = json.loads(file.read_text(encoding="utf8"))
    for token in content["added_tokens"]:
        token["content"] = new.get(token["id"], token["content"])
    vocabulary = content["model"].get("vocab")
    if isinstance(vocabulary, dict):
        content["model"]["vocab"] = {names.get(text, text): number for text, number in vocabulary.items()}
    elif isinstance(vocabulary, list):  # unigram: [text, score] at the place of its id
        content["model"]["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf8")


def rename_in_settings(file: Path, names: Mapping[str, str]) -> None:
    """Change tokenizer_config.json wherever it calls a token by its old text."""

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: changed(item) for key, item in value.items()}
        if isinstance(value, list):
            return [changed(item) for item in value]
        return names.get(value, value) if isinstance(value, str) else value

    file.write_text(json.dumps(changed(json.loads(file.read_text(encoding="utf8"))), ensure_ascii=False), "utf8")
