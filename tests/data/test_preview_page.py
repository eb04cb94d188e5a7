from __future__ import annotations

from html.parser import HTMLParser

from ftkit.data.preview import Piece
from ftkit.data.preview_page import MOST_PACKS, MOST_TOKENS, Document, as_html


class Page(HTMLParser):
    """Collects the text, what the page would fetch, and the tokens with their classes and titles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags = "", list[str]()
        self.outside, self.tokens, self.segments = list[str](), list[tuple[str, str]](), list[tuple[str, str]]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.outside += [f"{tag} {name}" for name in found if name in ("src", "href") or name.startswith("on")]
        if tag == "span" and "title" in found:
            self.tokens.append((found["class"], found["title"]))
        if tag == "b":
            self.segments.append((found["style"], found["title"]))

    def handle_data(self, data: str) -> None:
        self.text += data


def page(pieces: list[Piece], packs: list[list[Document]] | None = None) -> str:
    return as_html("a & b", [("rows.jsonl", {"rows": "<3>"})], [("row", pieces)], packs or [], 8)


def test_a_page_needs_nothing_else_and_runs_nothing() -> None:
    text = "<script>alert(1)</script><img src=x onerror=alert(1)>$body"
    made = page([Piece(text, (1,), True, False)])
    read = Page(made)
    assert read.outside == []
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert "url(" not in made
    assert "@import" not in made
    assert text in read.text
    assert "<3>" in read.text
    assert "a & b" in read.text


def test_every_token_tells_its_id_and_label() -> None:
    pieces = [Piece("<s>", (1,), False, True), Piece("hi", (7, 8), True, False), Piece("</s>", (2,), True, True)]
    assert Page(page(pieces)).tokens == [("s", "1, not trained"), ("t", "7 8, trained"), ("t s", "2, trained")]


def test_line_breaks_are_drawn_and_not_copied() -> None:
    made = page([Piece("a\nb", (1,), False, False)])
    assert 'a<i class="n"></i>\nb' in made
    assert "a\nb" in Page(made).text


def test_segments_are_to_scale_and_name_their_row() -> None:
    packs = [[Document("rows.jsonl:1", 4, 1), Document("rows.jsonl:2", 2, 2)], [Document("rows.jsonl:3", 16, 4)]]
    read = Page(page([], packs))
    assert [style for style, _ in read.segments] == ["width:50.000%", "width:25.000%", "width:100.000%"]
    assert read.segments[0][1] == "rows.jsonl:1: 4 tokens, 1 trained"
    assert "6 tokens, 2 documents" in read.text
    assert "2 of at most 8 tokens" in read.text


def test_a_huge_step_is_drawn_in_part() -> None:
    read = Page(page([], [[Document("rows.jsonl:1", 8, 1)]] * (MOST_PACKS + 3)))
    assert len(read.segments) == MOST_PACKS
    assert "and 3 more" in read.text


def test_a_huge_document_is_shown_in_part() -> None:
    read = Page(page([Piece("a", (1,), False, False)] * (MOST_TOKENS + 5)))
    assert len(read.tokens) == MOST_TOKENS
    assert "... and 5 more" in read.text


def test_a_page_follows_light_and_dark() -> None:
    made = page([])
    assert "color-scheme: light dark" in made
    light, dark = made.split("prefers-color-scheme: dark")
    names = [part.split(":")[0].strip() for part in light.partition(":root {")[2].partition("}")[0].split(";")]
    colours = [name for name in names if name.startswith("--")]
    assert len(colours) > 10
    assert all(f"{name}: #" in dark for name in colours)
