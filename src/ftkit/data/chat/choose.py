"""Which chat template a data set is rendered with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ftkit import catalog
from ftkit.data.chat.environment import compile_template
from ftkit.data.chat.probe import probe
from ftkit.data.chat.renderer import Renderer
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection

FALLBACK = "tokenizer_default_fallback_"


class NamedTemplate(NamedTuple):
    """A template's text and where it comes from."""

    text: str
    origin: str


def choose_template(data: DataSection, dataset: DatasetSection, tokenizer: Any) -> NamedTemplate:
    """The data set's own `conversation` or `chat_template`, the recipe's, the tokenizer's, ChatML: the first there is.

    Raises:
        DataError: a template is asked for that does not exist.
    """
    own = _own(tokenizer)
    if dataset.conversation:
        return _built_in(dataset.conversation, f"{dataset.path}: conversation")
    name = dataset.chat_template or data.chat_template
    inline = data.chat_template_jinja
    if name == "jinja" or (name is None and inline):
        return _inline(inline)
    if name is None:
        return own or _built_in("chatml", "chat_template")
    if name == "tokenizer_default":
        if own is None:
            raise DataError(
                "the tokenizer has no chat template of its own",
                where="chat_template: tokenizer_default",
                help="name one, such as chat_template: chatml",
            )
        return own
    if name.startswith(FALLBACK):
        return own or _built_in(name.removeprefix(FALLBACK), "chat_template")
    return _built_in(name, "chat_template")


def build_renderer(template: NamedTemplate, tokenizer: Any) -> Renderer:
    """Compile a template with the tokenizer's special tokens and learn its habits."""
    special: Mapping[str, Any] = tokenizer.special_tokens_map
    named = {name: str(text) for name, text in special.items() if isinstance(text, str)}
    compiled = compile_template(template.text, named, origin=template.origin)
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    return Renderer(compiled, probe(compiled, added_tokens=added, eos_token=tokenizer.eos_token))


def _own(tokenizer: Any) -> NamedTemplate | None:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return NamedTemplate(template, "the tokenizer's chat template") if template else None


def _built_in(name: str, where: str) -> NamedTemplate:
    if name not in catalog.TEMPLATES:
        raise DataError(
            f"unknown chat template, got {name}", where=where, help=f"use one of {', '.join(sorted(catalog.TEMPLATES))}"
        )
    return NamedTemplate(catalog.load(catalog.TEMPLATES[name]), f"built-in {name}")


def _inline(text: str | None) -> NamedTemplate:
    """Jinja written into the recipe, or the name of a file that holds it."""
    if not text:
        raise DataError(
            "chat_template: jinja needs the template", where="chat_template", help="set chat_template_jinja to it"
        )
    if "{" in text:
        return NamedTemplate(text, "chat_template_jinja")
    try:
        return NamedTemplate(Path(text).read_text(encoding="utf-8-sig"), text)
    except OSError as absent:
        raise DataError(
            f"the chat template's file cannot be read: {absent.strerror}", where=text, help="check chat_template_jinja"
        ) from None
