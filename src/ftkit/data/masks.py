"""Which characters of a text are trained. The only place where that is decided.

A text is a row of pieces: the trained spans of characters, each under the role that speaks them. Tokens follow from
characters in `encode.py`: a token is trained if any of its characters is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ftkit.data.chat.renderer import Rendered, Turn
from ftkit.data.formats.turns import ROLES
from ftkit.data.values import Conversation, Message, Segments, Where
from ftkit.errors import DataError
from ftkit.recipe.section.data import DataSection, DatasetSection


class Span(NamedTuple):
    """Trained characters [start, end) and the role they count under in the report."""

    start: int
    end: int
    role: str


@dataclass(frozen=True)
class MaskRules:
    """What the recipe says about training.

    Args:
        everything: `train_on_inputs`: every character but BOS.
        roles: our names of the roles that are trained.
        ends: `train_on_eos`: the end of turn of trained turns (`turn`), of all turns (`all`), of the last trained
            turn (`last`), of none.
    """

    everything: bool = False
    roles: frozenset[str] = frozenset({"assistant"})
    ends: str = "turn"

    def described(self) -> str:
        """For the cache's name."""
        return f"{self.everything} {sorted(self.roles)} {self.ends}"

    def of_turns(self, text: str, turns: Sequence[Turn], where: Where) -> list[Span]:
        """Trained spans of a rendered conversation."""
        if self.everything:
            return [Span(0, len(text), "all")]
        trained = [self.is_trained(turn.message) for turn in turns]
        last = max((number for number, is_trained in enumerate(trained) if is_trained), default=-1)
        spans = []
        for number, (turn, is_trained) in enumerate(zip(turns, trained, strict=True)):
            is_last = self.ends == "last" and number == last
            with_end = self.ends == "all" or (self.ends == "turn" and is_trained) or is_last
            role = turn.message.role
            start = turn.start if is_trained else turn.content_end
            end = turn.end if with_end else turn.content_end
            if is_trained and turn.message.parts is not None:
                spans += [Span(*part, role) for part in _trained_parts(text, turn, where)]
                start = turn.content_end
            if start < end:
                spans.append(Span(start, end, role))
        return spans

    def check_found(self, conversation: Conversation, rendered: Rendered) -> None:
        """Refuse a conversation that has turns to train of which nobody can tell where they stand in the text.

        Marks find every turn that the template writes; the other two ways find the assistant's alone.

        Raises:
            DataError: a turn of which the mask needs something is not among those found.
        """
        found = {id(turn.message) for turn in rendered.turns}
        ends = self.ends == "all" and rendered.method != "marks"
        for number, message in enumerate(conversation.messages, start=1):
            wanted = not self.everything and (ends or self.is_trained(message))
            if wanted and id(message) not in found and message.content.strip():
                raise DataError(
                    f"turn {number} ({message.role}) has something to train, and is not found in the rendered text",
                    where=str(conversation.where),
                    help="choose another chat_template, or train the assistant's turns only (roles_to_train,"
                    " train_on_eos: turn)",
                )

    def is_trained(self, message: Message) -> bool:
        """Whether a turn is trained: the row's own wish, else by its role."""
        return message.role in self.roles if message.train is None else message.train

    def of_segments(self, segments: Segments) -> tuple[str, list[Span]]:
        """The joined text and its trained spans."""
        spans, position = [], 0
        for segment in segments.segments:
            end = position + len(segment.text)
            if segment.train or self.everything:
                spans.append(Span(position, end, "all" if self.everything else "assistant"))
            position = end
        return "".join(segment.text for segment in segments.segments), spans


def _trained_parts(text: str, turn: Turn, where: Where) -> list[tuple[int, int]]:
    """The trained parts of a turn's content, as characters of the whole text.

    Raises:
        DataError: the template does not write the content as it stands.
    """
    content = turn.message.content
    core = content.strip()
    at = text.rfind(core, turn.start, turn.content_end)  # the last: reasoning written in front may hold the same words
    if at < 0:
        raise DataError(
            "the chat template rewrites a turn that says which of its parts are trained",
            where=str(where),
            help="choose another chat_template, or take message_field_training_detail out",
        )
    before = len(content) - len(content.lstrip())
    parts = [part for part in turn.message.parts or () if part.train]
    inside = [(max(part.start - before, 0), min(part.end - before, len(core))) for part in parts]
    return [(at + start, at + end) for start, end in inside if start < end]


def mask_rules(data: DataSection, dataset: DatasetSection) -> MaskRules:
    """The rules of one data set: its own where it has them, else the recipe's.

    Raises:
        DataError: `roles_to_train` names no role that there is.
    """
    names = dataset.roles_to_train or data.roles_to_train
    known = dict(ROLES) | {alias: role for role, aliases in dataset.roles.items() for alias in _listed(aliases)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DataError(
            f"roles_to_train names no role of this data set, got {', '.join(unknown)}",
            where=dataset.path,
            help=f"use some of {', '.join(dict.fromkeys(known))}",
        )
    ends = dataset.train_on_eos or data.train_on_eos
    return MaskRules(data.train_on_inputs, frozenset(known[name] for name in names), ends)


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names
