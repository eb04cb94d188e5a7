"""The mask report: what of a prepared data set is trained, what was left out and why, in words for people."""

from __future__ import annotations

from ftkit.data.accounts import SetAccount
from ftkit.data.proof import EVERY, OTHER_PROMPT


def mask_report(account: SetAccount) -> dict[str, str]:
    """Name -> fact, in the order to be shown, for one data set entry."""
    trained = sum(account.trained_tokens.values())
    by_role = ", ".join(f"{role} {count:,}" for role, count in account.trained_tokens.items())
    facts = {
        "rows": f"{account.rows:,} read, {account.documents:,} kept, longest {account.longest:,} tokens",
        "left out": counted(account.dropped),
        "cut to sequence_len": f"{account.truncated:,}",
        "trained tokens": f"{trained:,} of {account.tokens:,} ({share(trained, account.tokens)}): {by_role}",
        "end of turn trained": f"in {share(account.ended, account.documents)} of the documents",
        "turns found by": counted(account.methods, of="documents by")
        if account.methods
        else "the format (no chat template)",
    }
    if account.template:
        facts["chat template"] = account.template
        compared, other = account.compared_prompts, account.allowed.get(OTHER_PROMPT, 0)
        facts["prompt as inference renders it"] = (
            f"in {compared - other:,} of {compared:,} documents compared (the first of each shape, then one in {EVERY})"
        )
    if account.mixed is not None:
        facts["used by its weight"] = f"{account.mixed:,} of {account.documents:,} documents"
    if account.endless:
        facts["no end"] = f"{account.endless:,} documents, as the tokenizer has no EOS"
    facts["broken, as allowed"] = counted(account.allowed)
    notes = [f"{text} ({of_documents(count)})" for text, count in account.notes.items()]
    return facts | {"note" if len(notes) == 1 else f"note {n}": text for n, text in enumerate(notes, start=1)}


def of_documents(count: int) -> str:
    """`1 document`, `2,000 documents`."""
    return f"{count:,} document{'s' if count != 1 else ''}"


def counted(numbers: dict[str, int], *, of: str = "") -> str:
    """`3 bad row, 1 longer than sequence_len`, or `none`."""
    noun = f" {of}" if of else ""
    return ", ".join(f"{number:,}{noun} {name}" for name, number in numbers.items()) or "none"


def share(part: int, whole: int) -> str:
    """A part in percent; 100% and 0% only where they are exact."""
    if not whole:
        return "0%"
    percent = 100 * part / whole
    if part not in (0, whole):
        percent = min(max(percent, 0.1), 99.9)
    return f"{percent:.3g}%" if part not in (0, whole) else f"{percent:.0f}%"
