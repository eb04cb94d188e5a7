"""Chat templates as transformers' users know them, compiled in Jinja's sandbox: a template is foreign code.

`{% generation %}` blocks are not swallowed but leave two marks in the text, so that one render gives both the text and
the places. The date that some templates ask for is fixed: the prepared tokens must not depend on the day.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ftkit.errors import DataError

# Unicode noncharacters: valid in a string, never exchanged as text, not stripped as white space.
BLOCK_START, BLOCK_END = "\ufdd8", "\ufdd9"
THINKING_SETTINGS = ("enable_thinking", "open_thinking", "thinking")  # of published templates
TODAY = datetime(2024, 7, 26)  # the date Llama 3.1's own template falls back on


class RefusedError(Exception):
    """The template itself refused the conversation, with its own words."""


@dataclass(frozen=True)
class CompiledTemplate:
    """A template and the special tokens it may name.

    Args:
        has_blocks: whether it marks what the model says by `{% generation %}`.
        reads_tools, reads_tool_calls: whether it mentions the tools of a conversation, the calls of a turn.
        settings: names by which it lets a caller choose whether the model thinks.
    """

    render_compiled: Callable[..., str]
    special_tokens: Mapping[str, str]
    has_blocks: bool
    reads_tools: bool
    reads_tool_calls: bool
    settings: tuple[str, ...] = ()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = False,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The conversation's text, marks of generation blocks included.

        Args:
            settings: further values, by the names under which the template reads them.

        Raises:
            RefusedError: the template raised, or cannot take this shape of conversation.
        """
        try:
            return self.render_compiled(
                messages=messages,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.special_tokens,
                **settings,
            )
        except Exception as bad:  # foreign code may raise anything: 1/0, recursion, its own words
            raise RefusedError(str(bad) or type(bad).__name__) from bad


def compile_template(text: str, special_tokens: Mapping[str, str], *, origin: str) -> CompiledTemplate:
    """Compile a chat template.

    Args:
        special_tokens: `bos_token` and its like -> text, only those that are set.
        origin: where the template comes from, for messages.

    Raises:
        DataError: it is no Jinja.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": TODAY.strftime}
    try:
        template = environment.from_string(text)
    except TemplateSyntaxError as bad:
        raise DataError(
            f"the chat template is no valid Jinja: {bad.message}",
            where=f"{origin}:{bad.lineno}",
            help="mend the template, or choose one by name with chat_template",
        ) from None
    has_blocks = any(True for _ in environment.parse(text).find_all(nodes.CallBlock))
    settings = tuple(name for name in THINKING_SETTINGS if re.search(rf"\b{name}\b", text))
    return CompiledTemplate(
        template.render, special_tokens, has_blocks, "tools" in text, "tool_calls" in text, settings
    )


class _GenerationBlocks(Extension):
    """`{% generation %} ... {% endgeneration %}`: what stands inside is the model's to say."""

    tags = {"generation"}  # noqa: RUF012  # the name and type that Extension declares

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's body between the two marks."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{BLOCK_START}{caller()}{BLOCK_END}"


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own `tojson` escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
