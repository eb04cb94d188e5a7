"""Which chat template a data set is rendered with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ftkit import catalog
from ftkit.data.chat.environment import compile_template
from ftkit.data.chat.probe import probe
from ftkit.data.chat.renderer import Renderer
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection
from ftkit.recipe.section.frozen import thaw

FILLED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token"})
FALLBACK = "tokenizer_default_fallback_"


class NamedTemplate(NamedTuple):
    """A template's text and where it comes from."""

    text: str
    origin: str


def choose_template(data: DataSection, dataset: DatasetSection, tokenizer: Any) -> NamedTemplate:
    """The data set's own `conversation` or `chat_template`, the recipe's, the tokenizer's, ChatML: the first there is.

    The recipe's `chat_template_kwargs` become its defaults, so that the tokenizer saved with it needs none.

    Raises:
        DataError: a template is asked for that does not exist.
    """
    chosen = _chosen(data, dataset, tokenizer)
    return chosen._replace(text=with_defaults(chosen.text, thaw(data.chat_template_kwargs)))


def with_defaults(template: str, values: Mapping[str, Any]) -> str:
    """The template with `values` for names that its caller leaves undefined.

    Raises:
        DataError: a name is no variable, or one that the conversation itself fills.
    """
    for name in values:
        if not name.isidentifier() or name in FILLED:
            raise DataError(
                f"no value of a chat template, got {name}",
                where="chat_template_kwargs",
                help=f"use names that the template reads, and none of {', '.join(sorted(FILLED))}",
            )
    # `+%}` keeps the line break that the template may begin with.
    lines = [
        f"{{%- if {name} is not defined %}}{{%- set {name} = {value!r} %}}{{%- endif +%}}"
        for name, value in sorted(values.items())
    ]
    return "".join([*lines, template])


def _chosen(data: DataSection, dataset: DatasetSection, tokenizer: Any) -> NamedTemplate:
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


def build_renderer(template: NamedTemplate, tokenizer: Any, eot_tokens: Sequence[str] = ()) -> Renderer:
    """Compile a template with the tokenizer's special tokens and learn its habits.

    Args:
        eot_tokens: further texts that end a turn.

    Raises:
        DataError: one of them is no token, so that no model could end a turn with it.
    """
    vocabulary = tokenizer.get_vocab() if eot_tokens else {}
    for token in eot_tokens:
        if token not in vocabulary:
            raise DataError(
                f"the tokenizer has no such token, got {token}", where="eot_tokens", help="add it with tokens: [...]"
            )
    special: Mapping[str, Any] = tokenizer.special_tokens_map
    named = {name: str(text) for name, text in special.items() if isinstance(text, str)}
    compiled = compile_template(template.text, named, origin=template.origin)
    ends = [*eot_tokens, *([tokenizer.eos_token] if tokenizer.eos_token else [])]
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    return Renderer(compiled, probe(compiled, added_tokens=added, ends=ends))


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
