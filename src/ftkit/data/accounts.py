"""What became of every row: the report that `prepare` hands out and keeps in the cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class SetAccount:
    """One data set entry, counted while it is prepared.

    Args:
        path, type, template: the entry as resolved; `template` is empty for text without turns.
        rows: rows read. `rows = documents + sum of dropped`.
        documents: rows that became a document.
        dropped: reason -> rows left out.
        truncated: documents cut to sequence_len.
        tokens, trained_tokens: over the documents kept; trained by role (`all` for train_on_inputs).
        methods: how turns were found -> documents (`marks`, `generation blocks`, `beginnings`).
        longest: tokens of the longest row, dropped ones included.
        ended: documents whose last trained turn ends with a trained end-of-turn token.
        compared_prompts: documents whose prompt was held against the one inference renders (see proof.PromptSample).
        endless: documents that should end with the tokenizer's EOS, which has none.
        mixed: of the documents, those that a mixture by weight uses; None without weights.
        allowed: invariant -> documents that break it, as the recipe allows.
        notes: what is peculiar to the chat template, and what to do about it -> documents where it was seen.
        without_end: documents that train no end of turn, by the template's habit.
    """

    path: str
    type: str
    template: str = ""
    rows: int = 0
    documents: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    truncated: int = 0
    tokens: int = 0
    trained_tokens: dict[str, int] = field(default_factory=dict)
    methods: dict[str, int] = field(default_factory=dict)
    longest: int = 0
    ended: int = 0
    compared_prompts: int = 0
    allowed: dict[str, int] = field(default_factory=dict)
    endless: int = 0
    mixed: int | None = None
    notes: dict[str, int] = field(default_factory=dict)
    without_end: int = 0

    def drop(self, reason: str) -> None:
        """Count a row that is left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


@dataclass(frozen=True)
class Rejected:
    """A row that `bad_rows: skip` left out, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class PartReport:
    """The data sets of one part (`datasets` or `test_datasets`).

    Args:
        cache: `hit`, `miss` or `off`, and why.
        folder: where the prepared data lies, and `rejected.jsonl` if rows were left out; empty without a cache.
    """

    sets: tuple[SetAccount, ...]
    rejected: tuple[Rejected, ...] = ()
    cache: str = "off"
    folder: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return asdict(self)


@dataclass(frozen=True)
class PrepareReport:
    """Everything `prepare` did, for the run's report and for `ftkit preview`."""

    train: PartReport
    evaluation: PartReport | None
    num_train: int
    num_evaluation: int

    @property
    def rows(self) -> int:
        """Rows read, over all data sets."""
        return sum(account.rows for account in self._sets)

    @property
    def tokens(self) -> int:
        """Tokens kept, over all data sets."""
        return sum(account.tokens for account in self._sets)

    @property
    def trained_tokens(self) -> dict[str, int]:
        """Trained tokens by role."""
        return _summed([account.trained_tokens for account in self._sets])

    @property
    def dropped(self) -> dict[str, int]:
        """Rows left out, by reason."""
        return _summed([account.dropped for account in self._sets])

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """Rows that `bad_rows: skip` left out, over all data sets."""
        return self.train.rejected + (self.evaluation.rejected if self.evaluation else ())

    @property
    def truncated(self) -> int:
        """Documents cut to sequence_len."""
        return sum(account.truncated for account in self._sets)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return asdict(self)

    @property
    def _sets(self) -> tuple[SetAccount, ...]:
        return self.train.sets + (self.evaluation.sets if self.evaluation else ())


def write_rejected(path: Path, rejected: Sequence[Rejected]) -> None:
    """Write one line of JSON for each row left out; no file for none."""
    if rejected:
        lines = [json.dumps(asdict(row), ensure_ascii=False) for row in rejected]
        path.write_text("\n".join(lines) + "\n", encoding="utf8")
    else:
        path.unlink(missing_ok=True)  # of an earlier run in this folder


def part_from_json(values: Mapping[str, Any], *, cache: str, folder: str) -> PartReport:
    """Read back what `PartReport.to_json` gave."""
    sets = tuple(SetAccount(**account) for account in values["sets"])
    return PartReport(sets, tuple(Rejected(**row) for row in values["rejected"]), cache, folder)


def _summed(counts: list[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for key, number in count.items():
            total[key] = total.get(key, 0) + number
    return total
