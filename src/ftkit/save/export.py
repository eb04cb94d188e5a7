"""What a run leaves for others: an adapter in PEFT's files, or a whole model in transformers', with its tokenizer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ftkit.errors import CheckpointError
from ftkit.model.adapter import adapter_files, write_adapter_config
from ftkit.parallel.backend import Backend

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
) -> None:
    """Write the result of a run; every rank calls it, rank 0 writes.

    Args:
        net: what `build_net` returned.
        tokenizer: with the chat template it was trained with.
        adapter: of `ModelPlan`; None writes the whole model.
        dtype: of the whole model's floats in the file; None as they are.
    """
    if adapter is not None:
        write_adapter(backend, net, adapter, folder)
    else:
        write_model(backend, net, folder, dtype)
    if backend.world.is_main:
        tokenizer.save_pretrained(folder)
        write_generation_config(net, tokenizer, folder)


def write_adapter(backend: Backend, net: PreTrainedModel, config: LoraConfig, folder: Path) -> None:
    """Write adapter_model.safetensors and adapter_config.json; every rank calls it, rank 0 writes.

    Raises:
        CheckpointError: a tensor is empty: what would be written is not the adapter.
    """
    names = adapter_files(net)  # PEFT's name -> the net's
    whole = dict(backend.full_state(sorted(set(names.values()))))
    if not backend.world.is_main:
        return
    empty = [name for name, tensor in whole.items() if tensor.numel() == 0]
    if empty:
        raise CheckpointError("the adapter holds an empty tensor, nothing was written", where=empty[0])
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors({peft: whole[name].clone() for peft, name in names.items()}, folder / ADAPTER_FILE)
    write_adapter_config(config, folder)


def write_model(backend: Backend, net: PreTrainedModel, folder: Path, dtype: torch.dtype | None) -> None:
    """Write the whole model as transformers does, in shards with an index where it is large."""
    names = list(net.state_dict())
    whole = {name: cast(tensor, dtype) for name, tensor in backend.full_state(names)}
    if not backend.world.is_main:
        return
    net.save_pretrained(folder, state_dict=whole, max_shard_size="5GB")
    if dtype is not None:
        config = copy.deepcopy(net.config)
        config.dtype = dtype
        config.save_pretrained(folder)


def write_generation_config(net: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    """Write the base's generation settings, ending where the tokenizer says a turn ends."""
    config = copy.deepcopy(net.generation_config)
    if config is None:
        return
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config.save_pretrained(folder)


def save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file that is whole or not there."""
    partial = file.with_name(file.name + ".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata={"format": "pt"})
    partial.replace(file)


def cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Floats in `dtype`; anything else as it is."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
