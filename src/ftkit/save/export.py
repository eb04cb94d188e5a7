"""What a run leaves for others: an adapter in PEFT's files, or a whole model in transformers', with its tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ftkit.errors import CheckpointError
from ftkit.model.adapter import write_adapter_config
from ftkit.model.naming import PEFT_PREFIX, adapter_files, is_adapter, plain_name
from ftkit.parallel.backend import Backend
from ftkit.parallel.shapes import whole_shape
from ftkit.save.stream import TensorShape, write_stream
from ftkit.save.whole_model import take_part, write_model
from ftkit.save.writing import writing

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel

ADAPTER_FILE = "adapter_model.safetensors"


def export(
    backend: Backend,
    net: PreTrainedModel,
    folder: Path,
    *,
    tokenizer: Any,
    adapter: LoraConfig | None,
    dtype: torch.dtype | None = None,
    grown: Iterable[str] = (),
    ends: Sequence[int] = (),
) -> None:
    """Write the result of a run; every rank calls it, rank 0 writes.

    Args:
        backend: holds the parameters.
        net: what `build_net` returned.
        folder: where; made if it is not there.
        tokenizer: with the chat template it was trained with.
        adapter: of `ModelPlan`; None writes the whole model.
        dtype: of the whole model's floats in the file; None as they are.
        grown: frozen tables with rows for new tokens (`ModelPlan` parameters with `stored_rows`), by transformers'
            names. They go into an adapter's file, as PEFT does: whoever loads it could not know the new rows.
        ends: the tokens that end an answer; none for the tokenizer's EOS alone.

    Raises:
        CheckpointError: the disk is full, or something else keeps a file from being written.
    """
    with writing("the result", folder):
        if adapter is not None:
            write_adapter(backend, net, adapter, folder, grown)
        else:
            write_model(backend, net, folder, dtype, tokens=special_ids(tokenizer, ends))
        if backend.world.is_main:
            tokenizer.save_pretrained(folder)
            write_generation_config(net, folder, special_ids(tokenizer, ends))


def write_adapter(
    backend: Backend, net: PreTrainedModel, config: LoraConfig, folder: Path, grown: Iterable[str] = ()
) -> None:
    """Write adapter_model.safetensors and adapter_config.json; every rank calls it, rank 0 writes.

    Raises:
        CheckpointError: a parameter is empty: what would be written is not the adapter.
    """
    parameters = dict(net.named_parameters(remove_duplicate=False))
    files = adapter_files(net) | grown_files(parameters, grown)  # PEFT's name -> the net's
    shapes = {
        name: TensorShape(tuple(whole_shape(parameters[mine])), parameters[mine].dtype) for name, mine in files.items()
    }
    empty = [name for name, shape in shapes.items() if shape.num_bytes == 0]
    if empty:
        raise CheckpointError("the adapter holds an empty tensor, nothing was written", where=empty[0])
    gathered = backend.full_state(files.values())
    if not backend.world.is_main:
        take_part(gathered)
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_stream(folder / ADAPTER_FILE, shapes, zip(files, (tensor for _, tensor in gathered), strict=True))
    write_adapter_config(config, folder)


def grown_files(parameters: Iterable[str], grown: Iterable[str]) -> dict[str, str]:
    """PEFT's name -> the net's, of frozen tables with new rows; one trained as a whole is in the file already."""
    wanted = set(grown)
    base = [name for name in parameters if not is_adapter(name) and plain_name(name) in wanted]
    return {PEFT_PREFIX + name: name for name in base if ".original_module." not in name}


def special_ids(tokenizer: Any, ends: Sequence[int]) -> dict[str, Any]:
    """What config.json and generation_config.json say of tokens, so that both agree with the tokenizer beside them."""
    eos = ends[0] if len(ends) == 1 else list(ends) or tokenizer.eos_token_id
    ids = {"eos_token_id": eos, "pad_token_id": tokenizer.pad_token_id}
    return ids | ({} if tokenizer.bos_token_id is None else {"bos_token_id": tokenizer.bos_token_id})


def write_generation_config(net: PreTrainedModel, folder: Path, tokens: Mapping[str, Any]) -> None:
    """Write the base's generation settings, with the ends that the run's own answers have."""
    config = copy.deepcopy(net.generation_config)
    if config is None:
        return
    for name, value in tokens.items():
        setattr(config, name, value)
    config.save_pretrained(folder)
