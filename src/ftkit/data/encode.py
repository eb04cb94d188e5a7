"""Text and trained spans -> token ids and a mask over tokens, many texts at a time.

The whole text is tokenized at once, so its ids are those of inference; the spans are carried over by asking the
tokenizer which token holds a character, twice for each span. A token that lies across a border is trained if any of its
characters is: of `": four"`, cut after the colon, a token `": f"` is trained, or the answer's first letter never is.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ftkit.data.masks import Span
from ftkit.data.proof import Broken
from ftkit.data.values import Tokens, Where
from ftkit.errors import DataError

MANY_SPANS = 512  # where three walks a span begin to cost more than all offsets as Python numbers (measured)


@dataclass(frozen=True, slots=True)
class Marked:
    """A text on its way to tokens.

    Args:
        add_bos, add_eos: put the tokenizer's BOS in front if it does so itself, its EOS behind.
        method: how the turns were found; empty for text without turns.
        trains_end: the last trained turn's end is trained: the model learns to stop.
        broken: the invariants that the row breaks.
        notes: what its chat template does that a reader may not expect.
        without_end: it trains no end of turn, as its chat template writes none.
        compared: its prompt was held against that of inference.
        prompt_end: where the prompt ends that the two have in common; 0 if nothing was compared, or they differ.
        tokens: the row came as tokens; `text` is then empty.
    """

    text: str
    spans: Sequence[Span]
    where: Where
    add_bos: bool = False
    add_eos: bool = False
    method: str = ""
    trains_end: bool = False
    broken: tuple[Broken, ...] = ()
    notes: tuple[str, ...] = ()
    without_end: bool = False
    compared: bool = False
    prompt_end: int = 0
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document as tokens.

    Args:
        ids: (T,) int32.
        trained: (T,) bool.
        ranges: the trained ranges `(first, last, role)`.
        joins_prompt: its first tokens are not those of its prompt alone, as the last of them holds what follows, too.
    """

    ids: np.ndarray
    trained: np.ndarray
    ranges: Sequence[Span]
    joins_prompt: bool = False

    @property
    def by_role(self) -> dict[str, int]:
        """Trained tokens of each role."""
        counts: dict[str, int] = {}
        for first, last, role in self.ranges:
            counts[role] = counts.get(role, 0) + last - first
        return counts

    def cut(self, num_tokens: int) -> Encoded:
        """The first `num_tokens` tokens."""
        ranges = [Span(r.start, min(r.end, num_tokens), r.role) for r in self.ranges if r.start < num_tokens]
        return replace(self, ids=self.ids[:num_tokens], trained=self.trained[:num_tokens], ranges=ranges)


@dataclass(frozen=True)
class FastEncoder:
    """An encoder over the `tokenizers` library, which keeps the way back from characters to tokens.

    Args:
        backend: the `tokenizers.Tokenizer`.
        bos: the id put in front of text without a chat template; None if the tokenizer does not.
        eos: the id put behind it.
        bos_to_double: the tokenizer's BOS whether it puts it in front or not; None where the same token is EOS too,
            which may well stand before it.
    """

    backend: Any
    bos: int | None
    eos: int | None
    bos_to_double: int | None = None

    def encode(self, texts: Sequence[Marked]) -> list[Encoded]:
        """Tokenize a batch on all cores.

        Raises:
            DataError: a row came with an id that the tokenizer does not have.
        """
        encodings = self.backend.encode_batch([marked.text for marked in texts], add_special_tokens=False)
        made = [self._masked(marked, encoding) for marked, encoding in zip(texts, encodings, strict=True)]
        for number, prompt in self._prompts(texts):
            marked, encoding = texts[number], encodings[number]
            answer = _token_at(encoding.char_to_token, marked.prompt_end, len(marked.text), len(encoding.ids))
            if encoding.ids[:answer] != prompt:
                made[number] = replace(made[number], joins_prompt=True)
        return made

    def _prompts(self, texts: Sequence[Marked]) -> list[tuple[int, list[int]]]:
        """The ids of prompts alone, of those that were compared, each with the number of its text."""
        chosen = [number for number, marked in enumerate(texts) if marked.prompt_end]
        alone = [texts[number].text[: texts[number].prompt_end] for number in chosen]
        encodings = self.backend.encode_batch(alone, add_special_tokens=False)
        return [(number, encoding.ids) for number, encoding in zip(chosen, encodings, strict=True)]

    def _taken(self, tokens: Tokens) -> Encoded:
        """Tokens as they came, but for the first, which nothing predicts."""
        known = self.backend.get_vocab_size(with_added_tokens=True)
        strange = tokens.ids[(tokens.ids < 0) | (tokens.ids >= known)]
        if len(strange):
            raise DataError(
                f"the tokenizer has ids below {known}, got {strange[0]}",
                where=str(tokens.where),
                help="use the tokenizer that the rows were made with (tokenizer_config)",
            )
        trained = tokens.trained.copy()
        trained[:1] = False
        borders = np.flatnonzero(np.diff(trained, prepend=False, append=False)).reshape(-1, 2)
        return Encoded(tokens.ids, trained, [Span(first, last, "all") for first, last in borders.tolist()])

    def _masked(self, marked: Marked, encoding: Any) -> Encoded:
        if marked.tokens is not None:
            return self._taken(marked.tokens)
        ids = encoding.ids
        before = [self.bos] if marked.add_bos and self.bos is not None and ids[:1] != [self.bos] else []
        after = [self.eos] if marked.add_eos and self.eos is not None and ids[-1:] != [self.eos] else []
        tokens = np.array(before + ids + after, np.int32)
        trained = np.zeros(len(tokens), np.bool_)
        ranges = []
        token_of = _lookup(encoding, len(marked.spans))
        for span in marked.spans:
            first, last = _token_range(token_of, span, len(marked.text), len(ids))
            first, last = first + len(before), last + len(before)
            if after and span.end == len(marked.text):
                last += 1  # EOS is the answer's end
            first = max(first, 1)  # nothing predicts the first token of a document
            if first < last:
                trained[first:last] = True
                ranges.append(Span(first, last, span.role))
        return Encoded(tokens, trained, ranges)

    def digest(self) -> str:
        """Changes with the tokenizer's content."""
        return hashlib.sha256(f"{self.bos} {self.eos} {self.backend.to_str()}".encode()).hexdigest()


def fast_encoder(tokenizer: Any) -> FastEncoder:
    """The encoder of a transformers tokenizer.

    Raises:
        DataError: it has no fast form, so no way back from characters to tokens.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise DataError(
            f"the tokenizer has no fast form, got {type(tokenizer).__name__}",
            where=getattr(tokenizer, "name_or_path", None),
            help="use a base_model or tokenizer_config whose folder has a tokenizer.json",
        )
    backend.no_truncation()
    backend.no_padding()
    adds_bos = tokenizer.bos_token_id is not None and tokenizer("x")["input_ids"][:1] == [tokenizer.bos_token_id]
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return FastEncoder(backend, bos if adds_bos else None, eos, None if bos == eos else bos)


def _lookup(encoding: Any, num_questions: int) -> Callable[[int], int | None]:
    """Character -> the first token that holds it, or None.

    The encoding's own `char_to_token` walks the tokens from the first one on, which makes a row of very many turns
    quadratic; from some questions on, looking all offsets up at once is faster.
    """
    if num_questions < MANY_SPANS:
        ask: Callable[[int], int | None] = encoding.char_to_token
        return ask
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    if (np.diff(offsets, axis=0) < 0).any():  # a normalizer that changes the order of characters
        return _lookup(encoding, 0)
    starts, ends = offsets[:, 0].tolist(), offsets[:, 1].tolist()

    def token_of(character: int) -> int | None:
        token = bisect_right(ends, character)
        return token if token < len(ends) and starts[token] <= character else None

    return token_of


def _token_range(
    token_of: Callable[[int], int | None], span: Span, num_characters: int, num_tokens: int
) -> tuple[int, int]:
    """Tokens [first, last) that hold any character of the span."""
    first = _token_at(token_of, span.start, num_characters, num_tokens)
    last = _token_at(token_of, span.end, num_characters, num_tokens)
    for character in range(span.end - 1, span.start - 1, -1):  # a token across the span's end belongs to it
        held = token_of(character)
        if held is not None:
            return first, max(last, held + 1) if last < num_tokens else num_tokens
    return first, last


def _token_at(token_of: Callable[[int], int | None], character: int, num_characters: int, num_tokens: int) -> int:
    """The token that holds `character`, or the first behind it where normalization dropped it."""
    while character < num_characters:
        token = token_of(character)
        if token is not None:
            return token
        character += 1
    return num_tokens
