"""The tokenizer and the tokens a recipe adds to it."""

from ftkit.recipe.section.base import Field, Section
from ftkit.recipe.section.frozen import FrozenMap


class SpecialTokens(Section):
    """Texts of the special tokens; absent ones stay the tokenizer's own."""

    bos_token: str | None = Field(default=None, description="Begin of text.")
    eos_token: str | None = Field(default=None, description="End of text.")
    pad_token: str | None = Field(default=None, description="Padding.")
    unk_token: str | None = Field(default=None, description="Unknown.")
    additional_special_tokens: tuple[str, ...] = Field(default=(), description="Further special tokens.")


class TokenSection(Section):
    """The tokenizer."""

    tokenizer_type: str | None = Field(
        default=None, description="Class of the tokenizer, where its folder does not say."
    )
    tokenizer_config: str | None = Field(
        default=None, description="Folder or hub id of the tokenizer, if not the model's."
    )
    tokenizer_use_fast: bool | None = Field(default=None, description="Use the fast tokenizer.")
    special_tokens: SpecialTokens = Field(default_factory=SpecialTokens.model_construct, description="Special tokens.")
    tokens: tuple[str, ...] = Field(default=(), description="Tokens to add.")
    resize_token_embeddings_to_32x: bool = Field(
        default=False, description="Round a grown vocabulary up to a multiple of 32."
    )
    eot_tokens: tuple[str, ...] = Field(
        default=(), description="Tokens that end a turn, where they differ from the end of text."
    )
    tokenizer_legacy: bool | None = Field(
        default=None, description="Read a sentencepiece tokenizer the way old versions did."
    )
    token_descriptions: FrozenMap = Field(
        default_factory=FrozenMap,
        description="New token -> words that describe it; its row starts as the mean of theirs instead of all rows'.",
    )
    added_tokens_overrides: FrozenMap = Field(
        default_factory=FrozenMap, description="Token id -> new text, for reserved tokens."
    )
