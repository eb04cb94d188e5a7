"""Merge an adapter into its base: a model that needs nothing but transformers, written shard by shard.

Every parameter of the merged net is made when its turn comes (read through mmap, changed in float32, rounded once) and
goes straight to its file. Memory holds one parameter and its float32 copy, whatever the size of the model.

The end of a tied model needs a decision: embedding and head stay one tensor as long as the adapter leaves them equal;
where it trained only one of them, or trained them apart, they are written as two and config.json says so.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.pytorch_utils import Conv1D

from ftkit.errors import ModelError
from ftkit.model.load import grown
from ftkit.model.plain import plain_net
from ftkit.save.merge_adapter import Adapter
from ftkit.save.merge_base import Base
from ftkit.save.merge_weights import merged_weight
from ftkit.save.whole_model import SHARD_BYTES, converted, file_pieces, write_config, write_files

SPECIAL_IDS = ("eos_token_id", "pad_token_id", "bos_token_id")

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass
class Merged:
    """The net that a merge makes, parameter by parameter.

    Args:
        dtype: of its floats.
        num_tokens: of the tokenizer that goes with it; the vocabulary is never smaller.
        notes: what a person should know, filled on the way.

    Raises:
        ModelError: the adapter changes what the base does not have.
    """

    base: Base
    adapter: Adapter
    dtype: torch.dtype
    num_tokens: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.in_files = frozenset(name for name in self.adapter.changes if not self.has_weight(name))
        self.refuse_unknown()
        self.rows = self.num_rows()
        self.note_means()
        self.tied = self.stays_tied()

    def has_weight(self, module: str) -> bool:
        """Whether the net has a weight under this module's name."""
        return f"{module}.weight" in self.base.state

    def refuse_unknown(self) -> None:
        """Raise one error naming everything in the adapter's file that has no place in the base."""
        files = set(self.base.weights.names())
        bad = [name for name in self.in_files if f"{name}.weight" not in files]
        bad += [name for name in self.adapter.whole if name not in self.base.state]
        if bad:
            raise ModelError(
                "the adapter changes what the base does not have\n  " + "\n  ".join(sorted(bad)),
                where=str(self.adapter.folder),
                help=f"give the base it was trained on with --base; this one is {self.base.source}",
            )

    def num_rows(self) -> int:
        """Rows of the vocabulary: what the base has, and what the adapter and its tokenizer add."""
        whole = self.adapter.whole
        tables = [self.adapter.weights.shape(whole[name])[0] for name in self.base.tables & whole.keys()]
        trained = [max(change.rows) + 1 for change in self.adapter.changes.values() if change.rows]
        needed = max([0, *tables, *trained, self.num_tokens])
        rows: int = max(needed, self.base.config.vocab_size)
        return rows

    def note_means(self) -> None:
        """Say which rows of new tokens the adapter does not bring: they are what training starts them with."""
        for name in sorted(self.base.tables):
            held = self.before(name).shape[0]
            module = self.base.tied.get(name, name).removesuffix(".weight")
            change = self.adapter.changes.get(module)
            lacking = set(range(held, self.rows)) - set(change.rows if change else ())
            if lacking:
                self.notes.append(
                    f"{name}: {len(lacking)} rows of new tokens are in neither base nor adapter; they are the mean of "
                    "the others, as training starts them"
                )

    def stays_tied(self) -> bool:
        """Whether what the base ties is still one tensor."""
        return all(self.ends_agree(head, embedding) for head, embedding in self.base.tied.items())

    def ends_agree(self, head: str, embedding: str) -> bool:
        """Whether two names of one tensor of the base have equal values after the merge."""
        trained = [end for end in (embedding, head) if self.is_trained(end)]
        if len(trained) == 2:
            return bool(torch.equal(self.value(head), self.value(embedding)))
        return not trained or bool(self.adapter.config.ensure_weight_tying) or self.only_rows(trained[0])

    def is_trained(self, name: str) -> bool:
        """Whether the adapter trained this end; a table that only brings the rows of new tokens is not."""
        module = name.removesuffix(".weight")
        copied = module.endswith(tuple(self.adapter.config.modules_to_save or ()))  # as PEFT matches them
        return module in self.adapter.changes or (name in self.adapter.whole and copied)

    def only_rows(self, name: str) -> bool:
        """Whether only some rows were trained; PEFT shares those with a tied head."""
        change = self.adapter.changes.get(name.removesuffix(".weight"))
        return change is not None and set(change.roles) == {"trainable_tokens_delta"}

    def config(self) -> PretrainedConfig:
        """The base's configuration as the merged net needs it."""
        config = copy.deepcopy(self.base.config)
        config.vocab_size = self.rows
        if self.base.tied and not self.tied:
            config.tie_word_embeddings = False
        return config

    def net(self) -> PreTrainedModel:
        """The merged net on meta, for names and shapes."""
        return plain_net(self.config(), dtype=self.dtype, trust_remote_code=self.base.model.trust_remote_code)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """The merged parameters called `names`, each made when it is asked for."""
        for name in names:
            yield name, self.rounded(name, self.value(self.trained_end(name)))

    def trained_end(self, name: str) -> str:
        """For a tied embedding, the name whose changes it takes: the head's, where only that was trained."""
        heads = [head for head, embedding in self.base.tied.items() if embedding == name and self.is_trained(head)]
        return heads[0] if self.tied and heads and not self.is_trained(name) else name

    def value(self, name: str) -> Tensor:
        """The merged parameter; float32 where the adapter changes it."""
        module, _, attribute = name.rpartition(".")
        value = self.with_rows(name, self.before(name))
        change = self.adapter.changes.get(module)
        if change is None or (attribute != "weight" and "lora_B.bias" not in change.roles):
            return value
        if attribute == "weight":
            return merged_weight(value, change, self.adapter.read, transposed=self.is_transposed(module))
        return value.float() + change.scaling * self.adapter.read(change.roles["lora_B.bias"]).float()

    def with_rows(self, name: str, value: Tensor) -> Tensor:
        """`value` with as many rows as the vocabulary, if it has one a token."""
        return grown(value, self.rows) if name in self.base.tables and value.shape[0] < self.rows else value

    def is_transposed(self, module: str) -> bool:
        """Whether a module keeps its weight as (in, out)."""
        return self.has_weight(module) and isinstance(self.base.net.get_submodule(module), Conv1D)

    def before(self, name: str) -> Tensor:
        """The parameter without LoRA: of the adapter's file where that has it whole, else of the base."""
        whole, source = self.adapter.whole, self.base.tied.get(name, name)
        if name in whole:
            return self.adapter.read(whole[name])
        if source in whole and not self.is_trained(source):
            return self.adapter.read(whole[source])
        return self.base.read(name, self.patch if self.in_files else None)

    def patch(self, file_name: str, value: Tensor) -> Tensor:
        """A tensor of the base's files with the changes of adapters that knew it by its name there.

        Older transformers had a linear an expert; adapters of that time name it, and its weight has the same name in
        the files still.
        """
        change = self.adapter.changes.get(file_name.removesuffix(".weight"))
        if change is not None and file_name.removesuffix(".weight") in self.in_files:
            value = merged_weight(value, change, self.adapter.read, transposed=False)
        return value.to(self.dtype) if value.is_floating_point() else value

    def rounded(self, name: str, value: Tensor) -> Tensor:
        """`value` in the dtype of the merge.

        Raises:
            ModelError: it is not finite, or has become so by rounding.
        """
        if not value.is_floating_point():
            return value
        rounded = value.to(self.dtype)
        changed = name.rpartition(".")[0] in self.adapter.changes or name in self.adapter.whole
        if changed and not is_finite(rounded):
            finite = is_finite(value)
            raise ModelError(
                f"a merged weight is too large for {self.dtype}" if finite else "a merged weight is not finite",
                where=name,
                help="use --dtype bfloat16" if finite else "look whether the adapter's training diverged",
            )
        return rounded


def write_merged(merged: Merged, folder: Path, *, tokenizer: Any = None, shard_bytes: int = SHARD_BYTES) -> list[str]:
    """Write the merged model in `folder`, which is there; return the names of the files of weights.

    Args:
        tokenizer: goes with the model; None for none.
        shard_bytes: a file is closed before it grows beyond this.
    """
    net = merged.net()
    pieces = {name: made for name, made in file_pieces(net, merged.dtype).items() if name in merged.base}
    refuse_misshapen(merged, net)

    def read(names: list[str]) -> Iterator[tuple[str, Tensor]]:
        return converted(net, merged.read(names), merged.dtype)

    files = write_files(folder, pieces, read, shard_bytes=shard_bytes)
    write_config(net, folder, merged.dtype, write_generation(merged, folder))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return files


def is_finite(value: Tensor) -> bool:
    """Whether all values are finite; looks at their ends, which takes no memory, and NaN is at both."""
    return value.numel() == 0 or all(bool(end.isfinite()) for end in value.aminmax())


def refuse_misshapen(merged: Merged, net: PreTrainedModel) -> None:
    """Raise one error naming every trained copy whose shape is not that of the base."""
    state = net.state_dict()
    wrong = [
        f"{name}, got {got}, expected {tuple(state[name].shape)}"
        for name, mine in merged.adapter.whole.items()
        if (got := merged.adapter.weights.shape(mine))[1:] != tuple(state[name].shape)[1:]
        or (name not in merged.base.tables and got[:1] != tuple(state[name].shape)[:1])
    ]
    if wrong:
        raise ModelError(
            "the adapter is of another base\n  " + "\n  ".join(wrong),
            where=str(merged.adapter.folder),
            help=f"give the base it was trained on with --base; this one is {merged.base.source}",
        )


def write_generation(merged: Merged, folder: Path) -> dict[str, Any]:
    """Write generation_config.json: the adapter's, which knows the ends of its answers, else the base's, if any.

    Returns:
        The special tokens of an adapter's, for config.json to say the same; nothing of the base's.
    """
    theirs, revision = merged.adapter.folder, merged.base.model.revision_of_model
    of_adapter = (theirs / "generation_config.json").is_file()
    try:
        if of_adapter:
            config = GenerationConfig.from_pretrained(str(theirs))
        else:
            config = GenerationConfig.from_pretrained(merged.base.source, revision=revision or "main")
    except OSError:
        return {}
    config.save_pretrained(str(folder))
    ids = {name: getattr(config, name) for name in SPECIAL_IDS}
    return {name: value for name, value in ids.items() if value is not None} if of_adapter else {}
