"""`unfrozen_parameters`: which parameters a fine-tune without an adapter trains; all others are frozen.

A pattern is a regular expression that a parameter's name begins with, as in Axolotl: a dot is a dot unless a quantifier
follows it, so `layers.[0-7].` means the blocks 0 to 7 and not 70.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import nn

from ftkit.errors import ModelError

WHERE = "unfrozen_parameters"
ROWS = r".+\[\d*:\d*\]|.+\[\d+\]"  # `embed_tokens.weight[:32000]`


def freeze_others(net: nn.Module, patterns: Sequence[str], tied: Mapping[str, str]) -> None:
    """Leave trainable in `net`, on meta, only what `patterns` name.

    Args:
        tied: name -> the parameter it is the same tensor as; a pattern for one of them trains both.

    Raises:
        ModelError: a pattern is no regular expression, matches nothing, or asks for single rows of a table.
    """
    refuse_rows(patterns)
    names = [name for name, _ in net.named_parameters(remove_duplicate=False)]
    names += [name for name in tied if name not in names]
    found = {pattern: [name for name in names if compiled(pattern).match(name)] for pattern in patterns}
    nothing = [pattern for pattern, matched in found.items() if not matched]
    if nothing:
        known = sorted({re.sub(r"\.\d+\.", ".N.", name) for name in names})
        raise ModelError(
            f"no parameter of {type(net).__name__} has a name that begins so, got {', '.join(nothing)}",
            where=WHERE,
            help=f"there are: {', '.join(known)}",
        )
    wanted = {tied.get(name, name) for matched in found.values() for name in matched}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        if tied.get(name, name) not in wanted:
            parameter.requires_grad_(False)


def refuse_rows(patterns: Sequence[str]) -> None:
    """Raise for patterns that choose rows: a frozen row beside a trained one would still be moved by weight decay."""
    rows = [pattern for pattern in patterns if re.fullmatch(ROWS, pattern)]
    if rows:
        raise ModelError(
            f"single rows of a parameter cannot be unfrozen, got {', '.join(rows)}",
            where=WHERE,
            help="with an adapter, peft_trainable_token_indices trains rows of the embedding; else name the parameter",
        )


def compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression that a pattern stands for."""
    try:
        return re.compile(re.sub(r"(?<!\\)\.(?![*+?{])", r"\.", pattern))
    except re.error as bad:
        raise ModelError(
            f"not a regular expression ({bad}), got {pattern}", where=WHERE, help="mend it, or write a name"
        ) from bad
