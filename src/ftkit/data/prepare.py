"""Rows -> documents of tokens and labels, once: the entry point of the data path.

For each data set entry: its source's rows, through its format to a conversation or segments, through chat template and
mask rules to text with trained spans, through the tokenizer in batches to ids and mask, through the length rule into
the store. Every row is accounted for. The result is cached under a name made of everything that shapes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ftkit import catalog
from ftkit.data.accounts import PartReport, PrepareReport, Rejected, SetAccount
from ftkit.data.cache import (
    BROKEN,
    BrokenError,
    cache_key,
    code_digest,
    lock,
    make_folder,
    read_cache,
    why_missed,
    write_cache,
)
from ftkit.data.chat.choose import NamedTemplate, build_renderer, choose_template
from ftkit.data.chat.renderer import Renderer
from ftkit.data.encode import Encoded, FastEncoder, Marked, fast_encoder
from ftkit.data.ends import check_ends, with_eos
from ftkit.data.formats.fields import Formatter, columns_of, likely_type
from ftkit.data.formats.links import join_links
from ftkit.data.formats.thinking import check_reasoning
from ftkit.data.leftovers import remove_leftovers
from ftkit.data.masks import MaskRules, Span, mask_rules
from ftkit.data.mixture import mix
from ftkit.data.partial import Work, take_up
from ftkit.data.prompt import JOINED, Comparison, compare_prompt
from ftkit.data.proof import DOUBLED_BOS, LOST_TOOLS, MISSING_END, Broken, PromptSample, has_doubled, trains_end
from ftkit.data.sources.hub import LostError
from ftkit.data.sources.source import Source, open_source
from ftkit.data.split import hold_out
from ftkit.data.store import ExampleStore, StoreWriter
from ftkit.data.values import Conversation, Message, Row, Segments, Tokens, Where
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection

CONVERSATIONS = ("sharegpt", "chat_template", "query_response", "oasst")  # types whose rows need a chat template
NEVER = ", in any document: the chat template writes none behind an earlier turn of the model, and none ends a row"
ANSWER_APART = "nothing to train on before the answer in `chosen`"  # of preference data
ROWS_PER_BATCH = 512  # tokenized together: enough work for all cores, little enough to hold
CHARACTERS_PER_BATCH = 1 << 20  # the same for long rows; a token in work takes some hundred bytes


@dataclass(frozen=True)
class Prepared:
    """What a run trains on.

    Args:
        evaluation: `test_datasets`, else the part `val_set_size` holds out, else None.
        chat_template: the template of the first data set that has one; the saved tokenizer gets it.
    """

    train: ExampleStore
    evaluation: ExampleStore | None
    report: PrepareReport
    chat_template: str | None


def prepare(
    data: DataSection,
    tokenizer: Any,
    *,
    cache_dir: Path | None,
    sequence_len: int,
    seed: int,
    eot_tokens: tuple[str, ...] = (),
    on_progress: Callable[[int, int | None], None] = lambda rows, expected: None,
) -> Prepared:
    """Prepare the data sets of a recipe, or find them prepared.

    Args:
        tokenizer: with all tokens added (`load_tokenizer`).
        cache_dir: folder of the cache; None prepares in memory.
        eot_tokens: texts that end a turn beside the tokenizer's EOS.
        on_progress: called many times while preparing, never on a cache hit, with the rows done and the rows there
            are of the part in work (None where only reading tells).

    Raises:
        DataError: a source, row, template or setting cannot be used, or no document is left.
    """
    if cache_dir:
        make_folder(cache_dir)
        remove_leftovers(cache_dir, code_digest())
    encoder = fast_encoder(tokenizer)
    entries = [_open_entry(data, dataset, tokenizer, eot_tokens, cache_dir) for dataset in data.datasets]
    if not entries:
        raise DataError("the recipe names no data set", where="datasets", help="add datasets: [{path: ..., type: ...}]")
    job = _Job(data, encoder, sequence_len, eot_tokens, on_progress)
    train, train_report = mix(*job.run(entries, cache_dir), data.datasets, seed)
    if data.test_datasets:
        tests = [_open_entry(data, dataset, tokenizer, eot_tokens, cache_dir) for dataset in data.test_datasets]
        evaluation, evaluation_report = mix(*job.run(tests, cache_dir), data.test_datasets, seed)
        held_out: tuple[ExampleStore, ExampleStore | None] = train, evaluation
    else:
        held_out, evaluation_report = hold_out(train, data.val_set_size, seed), None
    num_held = len(held_out[1]) if held_out[1] is not None else 0
    report = PrepareReport(train_report, evaluation_report, len(held_out[0]), num_held)
    template = next((entry.template.text for entry in entries if entry.template), None)
    return Prepared(*held_out, report, template)


@dataclass(frozen=True)
class _Entry:
    """One data set entry with its parts found and built."""

    dataset: DatasetSection
    source: Source
    formatter: Formatter
    rules: MaskRules
    template: NamedTemplate | None
    renderer: Renderer | None
    may_add_eos: bool

    def shape(self) -> str:
        """What of the entry shapes tokens: all but its weight, by which documents are chosen afterwards."""
        return self.dataset.model_copy(update={"weight": None}).model_dump_json()

    def rows(self) -> Iterator[Row]:
        """The source's rows; messages one a row are joined to trees."""
        rows = self.source.rows()
        return join_links(rows) if self.dataset.type == "oasst" else rows

    def mark(self, row: Row, default_system: str | None, sample: PromptSample) -> Marked:
        """A row's text and trained spans, and what it breaks.

        Args:
            sample: chooses whether the row's prompt is held against that of inference.
        """
        record = self.formatter(row)
        if isinstance(record, Segments):
            text, spans = self.rules.of_segments(record)
            ends = record.add_eos and bool(record.segments) and record.segments[-1].train
            return Marked(text, spans, row.where, record.add_bos, record.add_eos, trains_end=ends)
        if isinstance(record, Tokens):
            spans = [Span(0, 0, "all")] if record.trained[1:].any() else []
            return Marked("", spans, row.where, tokens=record)
        if self.renderer is None:
            raise AssertionError("formats of conversations have a template")
        record = _with_system(record, default_system)
        return self._mark_turns(self.renderer, record, sample)

    def _mark_turns(self, renderer: Renderer, conversation: Conversation, sample: PromptSample) -> Marked:
        rendered = renderer.render(conversation)
        self.rules.check_found(conversation, rendered)
        ends = check_ends(self.rules, conversation, rendered, renderer.habits, may_add_eos=self.may_add_eos)
        turns = with_eos(rendered) if ends.add_eos else rendered.turns
        spans = self.rules.of_turns(rendered.text, turns, conversation.where)
        compared = compare_prompt(renderer, conversation, rendered) if sample.wants(conversation) else Comparison()
        missing = Broken(MISSING_END) if ends.is_missing else None
        lost = Broken(LOST_TOOLS) if conversation.tools and not renderer.template.reads_tools else None
        learns_to_stop = ends.add_eos or trains_end(turns, spans)
        return Marked(
            rendered.text,
            spans,
            conversation.where,
            add_eos=ends.add_eos,
            method=rendered.method,
            trains_end=learns_to_stop,
            broken=tuple(one for one in (compared.broken, missing, lost) if one),
            notes=tuple(note for note in (compared.note, ends.note) if note),
            without_end=bool(ends.note) and not learns_to_stop,
            compared=compared.compared,
            prompt_end=compared.end,
        )


def _open_entry(
    data: DataSection, dataset: DatasetSection, tokenizer: Any, eot_tokens: tuple[str, ...], cache_dir: Path | None
) -> _Entry:
    source = open_source(dataset, cache_dir / "downloads" if cache_dir else None, streaming=data.streaming)
    type_ = "custom" if isinstance(dataset.type, Mapping) else dataset.type or _told_by_rows(source, dataset.path)
    if type_ not in catalog.FORMATS:
        raise DataError(
            f"unknown data set type, got {type_}",
            where=dataset.path,
            help=f"use one of {', '.join(sorted(catalog.FORMATS))}, or write a type of your own (format, field_...)",
        )
    formatter: Formatter = catalog.load(catalog.FORMATS[type_])(dataset)
    is_chat = type_.partition(".")[0] in CONVERSATIONS
    template = choose_template(data, dataset, tokenizer) if is_chat else None
    if template:
        check_reasoning(dataset, template.text)
    renderer = build_renderer(template, tokenizer, eot_tokens) if template else None
    may_add_eos = tokenizer.eos_token_id is not None and MISSING_END not in data.allow
    return _Entry(dataset, source, formatter, mask_rules(data, dataset), template, renderer, may_add_eos)


def _told_by_rows(source: Source, path: str) -> str:
    """The type of a data set whose entry names none: rows of tokens can be nothing else; others are only guessed at."""
    first = next(source.rows(), None)
    column, type_ = likely_type(first) if first else ("", "")
    if type_ == "pretokenized" or first is None:
        return "pretokenized"
    raise DataError(
        "the data set has no type",
        where=path,
        help=f"row 1 has `{column}`; did you mean type: {type_}?"
        if type_
        else f"name one: {', '.join(sorted(catalog.FORMATS))} (row 1 has {columns_of(first)})",
    )


def _with_system(conversation: Conversation, default: str | None) -> Conversation:
    if not default or any(message.role == "system" for message in conversation.messages):
        return conversation
    return replace(conversation, messages=(Message("system", default), *conversation.messages))


@dataclass(frozen=True)
class _Job:
    """Prepares parts with the same settings."""

    data: DataSection
    encoder: FastEncoder
    sequence_len: int
    eot_tokens: tuple[str, ...]
    on_progress: Callable[[int, int | None], None]

    def run(self, entries: list[_Entry], cache_dir: Path | None) -> tuple[ExampleStore, PartReport]:
        """One part, from the cache if it is there."""
        if cache_dir is None:
            return self._fresh(entries, Work(), "off")
        parts = self._parts(entries)
        folder = cache_dir / cache_key(parts)
        with lock(folder):
            try:
                found, reason = read_cache(folder), ""
            except BrokenError as bad:
                shutil.rmtree(folder)
                found, reason = None, f"miss: {BROKEN} and is made anew ({bad})"
            if found:
                return found
            work = take_up(
                folder.with_name(f".{folder.name}.partial"),
                unique=self.data.dataset_exact_deduplication,
                code=code_digest(),
            )
            reason = reason or f"miss: {why_missed(folder, parts)}"
            if work.resumed:
                reason += f"; {work.resumed} rows were taken over from a run that was stopped"
            try:
                store, report = self._fresh(entries, work, reason, str(folder))
            except LostError:
                raise
            except DataError:
                work.discard()  # the rows or the recipe have to be changed, and then it is other work
                raise
            write_cache(folder, store, report, parts, work.whole)
            work.discard()
            written = read_cache(folder)
        return (written[0], report) if written else (store, report)

    def _fresh(
        self, entries: list[_Entry], work: Work, cache: str, folder: str = ""
    ) -> tuple[ExampleStore, PartReport]:
        counts = [entry.source.count() for entry in entries]
        expected = None if None in counts else sum(count or 0 for count in counts)
        for entry in entries[work.done :]:
            self._entry(entry, work, lambda: self.on_progress(work.rows, expected))
            work.end()
        return work.store(), PartReport(tuple(work.accounts), tuple(work.rejected), cache, folder)

    def _parts(self, entries: list[_Entry]) -> dict[str, object]:
        """Everything that shapes the tokens, by the names a person would use."""
        shaping = (
            "excess_length_strategy",
            "bad_rows",
            "default_system_message",
            "allow",
            "min_sample_len",
            "dataset_exact_deduplication",
        )
        return {
            "the data set entry": [entry.shape() for entry in entries],
            "the data's bytes": [entry.source.digest() for entry in entries],
            "the mask rules": [entry.rules.described() for entry in entries],
            "the chat template": [entry.template for entry in entries],
            "eot_tokens": self.eot_tokens,
            "the tokenizer": self.encoder.digest(),
            "sequence_len": self.sequence_len,
            **{name: getattr(self.data, name) for name in shaping},
        }

    def _entry(self, entry: _Entry, work: Work, on_rows: Callable[[], None]) -> None:
        """One data set, from where the work on it was left."""
        origin = entry.template.origin if entry.template else ""
        account = work.begin(SetAccount(entry.dataset.path, str(entry.dataset.type or "pretokenized"), origin))
        rows = self._usable(entry, account, work)
        for batch in _batches(rows):
            for marked, encoded in zip(batch, self.encoder.encode(batch), strict=True):
                if self._sound(marked, encoded, account, work.rejected):
                    self._keep(marked, encoded, account, work.writer)
            work.save()
            on_rows()
        if not account.rows:
            raise DataError("the data set is empty", where=account.path, help="check the path, split and file")
        if not account.documents:
            raise _nothing_left(account, self.sequence_len)
        if account.without_end == account.documents and MISSING_END not in self.data.allow:
            raise Broken(MISSING_END, NEVER).error(account.path)

    def _usable(self, entry: _Entry, account: SetAccount, work: Work) -> Iterator[Marked]:
        """Rows not read yet as marked text; a bad row raises, or is set aside."""
        for row in islice(entry.rows(), account.rows, None):
            account.rows += 1
            try:
                marked = entry.mark(row, self.data.default_system_message, work.sample)
            except DataError as bad:
                self._reject(bad, "bad row", row.where, account, work.rejected)
                continue
            if marked.spans:
                yield marked
            else:
                account.drop(ANSWER_APART if "chosen" in row.values else "nothing to train on")

    def _sound(self, marked: Marked, encoded: Encoded, account: SetAccount, rejected: list[Rejected]) -> bool:
        """Whether a document keeps every invariant that is not allowed to fail; what is allowed is counted."""
        doubled = (Broken(DOUBLED_BOS),) if has_doubled(encoded.ids, self.encoder.bos_to_double) else ()
        broken = marked.broken + doubled
        refused = next((one for one in broken if one.name not in self.data.allow), None)
        if refused:
            self._reject(refused.error(marked.where), f"breaks {refused.name}", marked.where, account, rejected)
            return False
        for one in broken:
            account.allowed[one.name] = account.allowed.get(one.name, 0) + 1
        return True

    def _reject(self, bad: DataError, reason: str, where: Where, account: SetAccount, rejected: list[Rejected]) -> None:
        """Raise what is wrong with a row, or set the row aside under `reason` if the recipe skips bad rows."""
        if self.data.bad_rows != "skip":
            raise bad
        account.drop(reason)
        rejected.append(Rejected(str(where), bad.what))

    def _keep(self, marked: Marked, encoded: Encoded, account: SetAccount, writer: StoreWriter) -> None:
        """Apply the length rule and store the document."""
        num_tokens = len(encoded.ids)
        account.longest = max(account.longest, num_tokens)
        kept = encoded
        if num_tokens < (self.data.min_sample_len or 0):
            return account.drop("shorter than min_sample_len")
        if num_tokens > self.sequence_len:
            strategy = self.data.excess_length_strategy
            if strategy == "error":
                raise _too_long(num_tokens, self.sequence_len, marked.where)
            if strategy == "drop":
                return account.drop("longer than sequence_len")
            kept = encoded.cut(self.sequence_len)
        if not kept.trained.any():
            return account.drop("nothing to train on" if kept is encoded else "nothing to train on within sequence_len")
        if self.data.dataset_exact_deduplication and not writer.is_new(kept.ids, kept.trained):
            return account.drop("equal to an earlier row")
        account.truncated += kept is not encoded
        account.documents += 1
        account.tokens += len(kept.ids)
        for role, count in kept.by_role.items():
            account.trained_tokens[role] = account.trained_tokens.get(role, 0) + count
        is_endless = marked.add_eos and self.encoder.eos is None
        account.ended += marked.trains_end and kept is encoded and not is_endless
        account.endless += is_endless
        account.compared_prompts += marked.compared
        account.without_end += marked.without_end
        for note in (*marked.notes, *((JOINED,) if encoded.joins_prompt else ())):
            account.notes[note] = account.notes.get(note, 0) + 1
        if marked.method:
            account.methods[marked.method] = account.methods.get(marked.method, 0) + 1
        return writer.add(kept.ids, kept.trained, marked.where)


def _batches(rows: Iterator[Marked]) -> Iterator[list[Marked]]:
    """The rows in batches of so many rows or characters, whichever come first."""
    batch, characters = list[Marked](), 0
    for row in rows:
        batch.append(row)
        characters += len(row.text) if row.tokens is None else len(row.tokens.ids)
        if len(batch) == ROWS_PER_BATCH or characters >= CHARACTERS_PER_BATCH:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _too_long(num_tokens: int, sequence_len: int, where: Where) -> DataError:
    return DataError(
        f"the row is longer than sequence_len {sequence_len}, got {num_tokens} tokens",
        where=str(where),
        help="raise sequence_len, or set excess_length_strategy to drop or truncate",
    )


def _nothing_left(account: SetAccount, sequence_len: int) -> DataError:
    reasons = ", ".join(f"{count} {reason}" for reason, count in account.dropped.items())
    return DataError(
        f"none of the {account.rows} rows can be trained on ({reasons}; longest row {account.longest} tokens, "
        f"sequence_len {sequence_len})",
        where=account.path,
        help="put the chosen answer behind the turns of its row, or into the column of the answer; preferences are not"
        " trained on"
        if ANSWER_APART in account.dropped
        else "raise sequence_len, or check roles_to_train and the rows",
    )
