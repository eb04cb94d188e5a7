"""The preview as one page of HTML: it needs nothing but itself, runs nothing, and follows the reader's light or dark.

Every token is a box, shaded in turn so that borders show; its id and label are told under the pointer. Trained tokens
are green, special ones have a frame. Packs are bars to scale, a segment a document, its trained share at the foot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import NamedTuple

from ftkit.data.preview import Piece


class Document(NamedTuple):
    """One document in a pack: where its row is, its tokens, and how many of them are trained."""

    where: str
    num_tokens: int
    num_trained: int


MOST_PACKS = 256  # bars on a page
MOST_TOKENS = 20_000  # of a document on a page: a browser draws more, but slowly
LEGEND = (
    '<p class="legend"><span class="k t">trained</span> <span class="k">not trained</span> '
    '<span class="k s">special token</span> <span class="k t s">special token, trained</span> '
    '<span class="k"><i class="n"></i>line break</span> <span class="hint">under the pointer: id and label</span></p>'
)


def as_html(
    title: str,
    facts: Sequence[tuple[str, Mapping[str, str]]],
    documents: Sequence[tuple[str, Sequence[Piece]]],
    packs: Sequence[Sequence[Document]],
    capacity: int,
) -> str:
    """A page with the rows as they are trained, the mask report, and the packs of one step.

    Args:
        facts: heading and table of each data set.
        documents: heading and pieces of each document.
        packs: the documents of each pack.
        capacity: tokens that a pack may hold.
    """
    shown = [f"<h1>{escape(title)}</h1>", "<h2>Rows as they are trained</h2>", LEGEND]
    for heading, pieces in documents:
        tokens = "".join(map(_span, pieces[:MOST_TOKENS]))
        more = f"\n... and {len(pieces) - MOST_TOKENS:,} more" if len(pieces) > MOST_TOKENS else ""
        shown.append(f"<details open><summary>{escape(heading)}</summary><pre>{tokens}{more}</pre></details>")
    shown.append("<h2>Mask report</h2>")
    for heading, table in facts:
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in table.items())
        shown.append(f"<h3>{escape(heading)}</h3><table>{rows}</table>")
    shown += _packs(packs, capacity)
    return PAGE.substitute(title=escape(title), body="\n".join(shown))


def _span(piece: Piece) -> str:
    look = " ".join(name for name, holds in (("t", piece.is_trained), ("s", piece.is_special)) if holds)
    text = escape(piece.text).replace("\n", '<i class="n"></i>\n')
    ids = " ".join(map(str, piece.ids))
    label = "trained" if piece.is_trained else "not trained"
    return f'<span class="{look}" title="{ids}, {label}">{text}</span>'


def _packs(packs: Sequence[Sequence[Document]], capacity: int) -> list[str]:
    used = sum(document.num_tokens for pack in packs for document in pack)
    full = f", {100 * used / (capacity * len(packs)):.1f}% full" if packs else ""
    shown = [
        "<h2>Rows of the first step</h2>",
        f"<p>{len(packs):,} of at most {capacity:,} tokens{full}. A segment is a document; the line at its foot is the "
        "share that is trained.</p>",
        *(_bar(pack, capacity) for pack in packs[:MOST_PACKS]),
    ]
    return shown + ([f"<p>and {len(packs) - MOST_PACKS:,} more</p>"] if len(packs) > MOST_PACKS else [])


def _bar(pack: Sequence[Document], capacity: int) -> str:
    used = sum(document.num_tokens for document in pack)
    whole = max(capacity, used)
    segments = "".join(
        f'<b style="width:{100 * one.num_tokens / whole:.3f}%" '
        f'title="{escape(one.where)}: {one.num_tokens:,} tokens, {one.num_trained:,} trained">'
        f'<u style="width:{100 * one.num_trained / one.num_tokens:.1f}%"></u></b>'
        for one in pack
    )
    noun = "document" if len(pack) == 1 else "documents"
    words = f"{used:,} tokens, {len(pack):,} {noun}"
    return f'<div class="row"><div class="bar" title="{words}">{segments}</div><small>{words}</small></div>'


PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ground: #fff; --card: #f6f7f8; --ink: #1d2125; --dim: #5f6770; --line: #d9dde1;
  --odd: #eceef0; --green: #c4ecc9; --green-odd: #a9dfb1; --green-ink: #0b4a1c; --green-line: #2f8a4a;
  --doc: #5b8ec4; --doc-odd: #8fb5dd; --foot: #1c7a3a; }
@media (prefers-color-scheme: dark) { :root { --ground: #15181b; --card: #1d2125; --ink: #e6e8ea; --dim: #99a1a9;
  --line: #363c42; --odd: #272c31; --green: #17452a; --green-odd: #1f5836; --green-ink: #c9f2d3; --green-line: #58b879;
  --doc: #39648f; --doc-odd: #4f7fae; --foot: #6fdc93; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 66em;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin: 0; } h2 { font-size: 1.15em; margin: 2em 0 .5em; } h3 { font-size: 1em; margin: 1.2em 0 .3em; }
h1, h3, summary { overflow-wrap: anywhere; }
details { margin: .8em 0; border: 1px solid var(--line); border-radius: 6px; background: var(--card); }
summary { padding: .5em .9em; font-weight: 600; cursor: pointer; }
pre { margin: 0; padding: .8em .9em; border-top: 1px solid var(--line); color: var(--dim); font-size: 13px; line-height: 1.65;
  white-space: pre-wrap; overflow-wrap: anywhere; }
pre span:nth-child(odd) { background: var(--odd); }
pre .t, .k.t { background: var(--green); color: var(--green-ink); } pre .t:nth-child(odd) { background: var(--green-odd); }
.s { font-weight: 700; outline: 1px solid var(--dim); outline-offset: 0; margin: 0 2px; border-radius: 3px; }
.t.s { outline-color: var(--green-line); }
.n::before { content: "\\21b5"; opacity: .55; font-style: normal; }
.legend { position: sticky; top: 0; background: var(--ground); padding: .5em 0; margin: 0; z-index: 1; }
.k { padding: .1em .45em; margin-right: .4em; background: var(--odd); border-radius: 3px; } .hint { color: var(--dim); }
table { border-collapse: collapse; width: 100%; } th, td { padding: .25em 0; border-top: 1px solid var(--line); vertical-align: top;
  text-align: left; overflow-wrap: anywhere; } th { width: 15em; padding-right: 1em; font-weight: 600; }
.row { display: flex; gap: 1em; align-items: center; margin: 4px 0; } .row small { flex: 0 0 15em; color: var(--dim); }
.bar { flex: 1; display: flex; height: 20px; background: var(--odd); border-radius: 3px; overflow: hidden; }
.bar b { background: var(--doc); display: flex; align-items: flex-end; box-sizing: border-box; border-right: 1px solid var(--ground); }
.bar b:nth-child(even) { background: var(--doc-odd); } .bar u { background: var(--foot); height: 5px; }
</style></head>
<body>
$body
</body></html>
""")  # noqa: E501
