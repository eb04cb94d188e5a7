"""The tokenizer of a recipe: its folder's own, then the recipe's special and added tokens, then a pad token.

All of it happens before any row is read, so that every configured token is one id everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftkit.data.renamed_tokens import rename_tokens
from ftkit.errors import DataError
from ftkit.hub import is_cached, is_lfs_pointer, why_silent
from ftkit.recipe.section.tokens import SpecialTokens, TokenSection

# Tokens that vocabularies keep for padding or never use otherwise, the most fitting first.
PAD_CANDIDATES = (
    "<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<PAD>", "<|finetune_right_pad_id|>", "<|finetune_right_pad|>",
    "<|reserved_special_token_0|>", "<|fim_pad|>", "<|vision_pad|>", "<|endoftext|>", "<|end_of_text|>",
)  # fmt: skip
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


def load_tokenizer(tokens: TokenSection, base_model: str, *, revision: str | None, trust_remote_code: bool) -> Any:
    """The transformers tokenizer with everything the recipe adds to it.

    Args:
        base_model: folder or hub id, used unless the recipe names a `tokenizer_config`.

    Raises:
        DataError: there is no tokenizer, or no token can serve as padding.
    """
    tokenizer = read_tokenizer(tokens, base_model, revision=revision, trust_remote_code=trust_remote_code)
    add_tokens(tokenizer, tokens)
    return tokenizer


def read_tokenizer(tokens: TokenSection, base_model: str, *, revision: str | None, trust_remote_code: bool) -> Any:
    """The tokenizer as its folder has it, before the recipe adds to it but for new texts of reserved tokens."""
    source = tokens.tokenizer_config or base_model
    tokenizer = _load(source, tokens.tokenizer_type, revision=revision, trust_remote_code=trust_remote_code)
    return rename_tokens(tokenizer, tokens.added_tokens_overrides) if tokens.added_tokens_overrides else tokenizer


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """What a recipe adds to a tokenizer.

    Args:
        known: ids before.
        added: new id -> the known ids of its description; none without one.
        renamed: ids that were there and have another text now.
    """

    known: int
    added: Mapping[int, tuple[int, ...]]
    renamed: tuple[int, ...] = ()


def add_tokens(tokenizer: Any, tokens: TokenSection) -> AddedTokens:
    """Add the recipe's special and other tokens and a pad token; return which of them are new ids.

    Raises:
        DataError: no token can serve as padding, or a description is of a token that is not new.
    """
    known, before = len(tokenizer), tokenizer.get_vocab()
    described = {text: tokenizer(words, add_special_tokens=False)["input_ids"] for text, words in descriptions(tokens)}
    _add_special(tokenizer, tokens.special_tokens)
    _add_plain(tokenizer, tokens.tokens)
    if tokens.special_tokens.pad_token is None:
        choose_pad(tokenizer)
    added = {number: token for token, number in tokenizer.get_vocab().items() if token not in before}
    wrong = [text for text, words in described.items() if text not in added.values() or not words]
    if wrong:
        raise DataError(
            f"only new tokens are described, each in words, got {', '.join(wrong)}",
            where="token_descriptions",
            help=f"new are: {', '.join(added.values()) or 'none'}",
        )
    first = {number: tuple(described.get(token, ())) for number, token in sorted(added.items())}
    return AddedTokens(known, first, tuple(sorted(map(int, tokens.added_tokens_overrides))))


def descriptions(tokens: TokenSection) -> Iterator[tuple[str, str]]:
    """The recipe's descriptions of new tokens."""
    for text, words in tokens.token_descriptions.items():
        yield text, str(words)


def choose_pad(tokenizer: Any) -> None:
    """Give the tokenizer a pad token that is not its EOS, if any can be had without a new id.

    Padding is masked by position, so even a pad token equal to EOS hides no real EOS; a distinct one keeps the saved
    tokenizer safe for tools that mask by id. No id is added for it: that would grow the model's embeddings.

    Raises:
        DataError: the tokenizer has neither a pad, an unknown nor an EOS token.
    """
    if tokenizer.pad_token is not None and tokenizer.pad_token != tokenizer.eos_token:
        return
    vocabulary = tokenizer.get_vocab()
    candidates = [token for token in (*PAD_CANDIDATES, tokenizer.unk_token) if token in vocabulary]
    usable = [token for token in candidates if token not in (tokenizer.eos_token, tokenizer.bos_token)]
    chosen = usable[0] if usable else tokenizer.eos_token
    if chosen is None:
        raise DataError(
            "the tokenizer has no token that can serve as padding",
            where=tokenizer.name_or_path or None,
            help='name one: special_tokens: {pad_token: "..."}',
        )
    tokenizer.pad_token = chosen


def _load(source: str, kind: str | None, *, revision: str | None, trust_remote_code: bool) -> Any:
    """By the folder's own description; by the recipe's `tokenizer_type` only where the folder has none.

    A recipe pasted for another model may name a class that does not fit the folder; loading by it would build a
    tokenizer with the right vocabulary and the wrong rules.
    """
    import transformers

    loaders: list[Callable[..., Any]] = [transformers.AutoTokenizer.from_pretrained]
    if kind not in (None, "AutoTokenizer"):
        named = getattr(transformers, kind or "", None)
        if named is None:
            raise DataError(
                f"transformers has no tokenizer class of this name, got {kind}",
                where="tokenizer_type",
                help="leave tokenizer_type out: the folder says which it is",
            )
        loaders.append(named.from_pretrained)
    cached_only = _must_come_from_cache(source, revision)
    problems = []
    for loader in loaders:
        try:
            return loader(
                source,
                revision=revision or "main",
                trust_remote_code=trust_remote_code,
                local_files_only=cached_only,
            )
        except Exception as bad:  # a folder's files through other people's parsers; `tokenizers` raises bare ones
            problems.append(_beginning(bad))
    pointers = [file.name for file in sorted(Path(source).expanduser().glob("*token*")) if is_lfs_pointer(file)]
    raise DataError(
        f"no tokenizer can be loaded ({'; '.join(dict.fromkeys(problems))})",
        where=source,
        help=f"run `git lfs pull` in that folder: git-lfs pointers stand in place of {', '.join(pointers)}"
        if pointers
        else "check base_model or tokenizer_config: a folder with a tokenizer.json, or a hub id that can be reached",
    )


def _beginning(problem: Exception) -> str:
    """The first line of somebody else's message; and the second, where the first only announces it."""
    first, *more = str(problem).strip().split("\n")
    if first.endswith(":") and more:
        return f"{first} {more[0].strip()}"
    return first or type(problem).__name__


def _must_come_from_cache(source: str, revision: str | None) -> bool:
    """Whether the hub is silent and its cache has to do.

    Raises:
        DataError: the hub is silent, and the cache has no tokenizer of `source`.
    """
    silent = None if Path(source).expanduser().exists() else why_silent()
    if silent is None:
        return False
    if is_cached(source, TOKENIZER_FILES, revision):
        return True
    raise DataError(
        f"no tokenizer can be loaded: neither a folder nor one that can be had from the hub now ({silent})",
        where=source,
        help="give a folder with a tokenizer.json, or connect once so that the hub's cache holds it",
    )


def _add_special(tokenizer: Any, special: SpecialTokens) -> None:
    named = {name: getattr(special, name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    tokenizer.add_special_tokens({name: text for name, text in named.items() if text is not None})
    if special.additional_special_tokens:
        tokenizer.add_special_tokens(
            {"additional_special_tokens": list(special.additional_special_tokens)}, replace_extra_special_tokens=False
        )


def _add_plain(tokenizer: Any, texts: tuple[str, ...]) -> None:
    from transformers import AddedToken

    tokenizer.add_tokens([AddedToken(text, lstrip=False, rstrip=False, normalized=False) for text in texts])
