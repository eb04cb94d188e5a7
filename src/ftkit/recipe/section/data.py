"""What is trained on: data sets, chat templates, masks, packing."""

from typing import Literal

from ftkit.recipe.section.base import Field, Section
from ftkit.recipe.section.frozen import FrozenMap


class DatasetSection(Section):
    """One data set."""

    path: str = Field(description="File, glob, folder, address or hub id.")
    type: str | FrozenMap | None = Field(default=None, description="Format of the rows.")
    conversation: str | None = Field(default=None, description="Chat template of this data set, by its old name.")
    name: str | None = Field(default=None, description="Configuration of a hub data set.")
    split: str | None = Field(default=None, description="Split, with slices as in train[:10%].")
    revision: str | None = Field(default=None, description="Branch, tag or commit on the hub.")
    data_files: tuple[str, ...] | str | None = Field(default=None, description="Files of the data set to read.")
    ds_type: str | None = Field(default=None, description="File type: json, parquet, csv, text, arrow.")
    field: str | None = Field(default=None, description="Column of the text (completion).")
    field_messages: str | None = Field(default=None, description="Column of the turns.")
    message_field_role: str | None = Field(default=None, description="Key of a turn's role.")
    message_field_content: str | None = Field(default=None, description="Key of a turn's text.")
    message_property_mappings: FrozenMap = Field(
        default_factory=FrozenMap, description="Our names of a turn's keys -> the rows'."
    )
    roles: FrozenMap = Field(default_factory=FrozenMap, description="Our role names -> the rows' names.")
    roles_to_train: tuple[str, ...] | None = Field(
        default=None, description="As the recipe's own key, for this data set."
    )
    train_on_eos: Literal["turn", "all", "last", "none"] | None = Field(
        default=None, description="As the recipe's own key."
    )
    chat_template: str | None = Field(default=None, description="Chat template of this data set.")
    system_prompt: str | None = Field(default=None, description="System text for rows without one.")
    field_instruction: str | None = Field(default=None, description="Column of the instruction.")
    field_input: str | None = Field(default=None, description="Column of the input.")
    field_output: str | None = Field(default=None, description="Column of the answer.")
    field_system: str | None = Field(default=None, description="Column of the system text.")
    shards: int | None = Field(default=None, description="Use one part in so many.")
    weight: float | None = Field(default=None, description="Share in a mixture.")
    shards_idx: int | None = Field(default=None, description="Which of these parts, from 0.")
    field_tools: str | None = Field(default=None, description="Column of the tools a conversation may call.")
    field_thinking: str | None = Field(default=None, description="Key of a turn's reasoning.")
    template_thinking_key: str | None = Field(default=None, description="Name the chat template has for it.")
    split_thinking: bool = Field(default=False, description="Split reasoning out of the text of turns.")
    message_field_training: str | None = Field(
        default=None, description="Key of a turn that says whether to train on it."
    )
    message_field_training_detail: str | None = Field(
        default=None, description="Key of a turn that says which parts to train on."
    )
    drop_system_message: bool = Field(default=False, description="Leave system turns out.")


class DataSection(Section):
    """The data of a run."""

    datasets: tuple[DatasetSection, ...] = Field(default=(), description="What is trained on.")
    test_datasets: tuple[DatasetSection, ...] = Field(default=(), description="What is evaluated on.")
    val_set_size: int | float = Field(default=0, description="Rows (whole number) or share held out for evaluation.")
    sequence_len: int = Field(default=2048, description="Longest document, and length of a pack, in tokens.")
    sample_packing: bool = Field(
        default=False, description="Put several documents in one row, isolated from one another."
    )
    eval_sample_packing: bool | None = Field(default=None, description="The same for evaluation.")
    pad_to_sequence_len: bool = Field(default=False, description="Fill rows up to sequence_len.")
    group_by_length: bool = Field(default=False, description="Batch documents of like length.")
    train_on_inputs: bool = Field(default=False, description="Train on the prompt too.")
    roles_to_train: tuple[str, ...] = Field(default=("assistant",), description="Roles whose turns are trained.")
    train_on_eos: Literal["turn", "all", "last", "none"] = Field(
        default="turn", description="Which end-of-turn tokens are trained."
    )
    chat_template: str | None = Field(default=None, description="Name of a chat template, or tokenizer_default.")
    chat_template_jinja: str | None = Field(default=None, description="A chat template in full.")
    default_system_message: str | None = Field(default=None, description="System text for conversations without one.")
    dataset_prepared_path: str | None = Field(default=None, description="Folder of prepared data sets.")
    excess_length_strategy: Literal["drop", "truncate", "error"] = Field(
        default="drop", description="What to do with documents above sequence_len."
    )
    bad_rows: Literal["error", "skip"] = Field(default="error", description="What to do with rows that cannot be used.")
    allow: tuple[Literal["doubled_bos", "missing_end", "other_prompt", "lost_tools"], ...] = Field(
        default=(), description="Invariants of prepared rows that may fail; they are counted instead of refused."
    )
    streaming: bool = Field(
        default=False,
        description="Read data sets of the hub row by row, without a copy of them here. Rows of any source are never"
        " held: they are prepared onto disk, as many as there are, and the run maps them from there. So steps are"
        " counted exactly, rows are shuffled over the whole set, and max_steps is not needed; to prepare fewer rows"
        " than there are, name them: split: train[:100000].",
    )
    shuffle_merged_datasets: bool = Field(default=True, description="Shuffle.")
    dataset_processes: int | None = Field(default=None, description="Processes that prepare data.")
    chat_template_kwargs: FrozenMap = Field(default_factory=FrozenMap, description="Values the chat template may read.")
    dataset_exact_deduplication: bool = Field(default=False, description="Use equal rows once.")
    min_sample_len: int | None = Field(
        default=None, description="Shortest document, in tokens; shorter ones are left out."
    )
