"""The adapter as PEFT knows it: which modules, with what settings, under what names.

ftkit injects with PEFT, names parameters as PEFT does and writes PEFT's files; only the layer that computes is its own
(`FusedLoraLinear`, registered for one LoraConfig at a time).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ftkit.errors import ModelError
from ftkit.model.continued import read_adapter_config, refuse_contradiction, refuse_variants
from ftkit.model.lora import FusedLoraLinear
from ftkit.model.naming import ADAPTER, is_adapter
from ftkit.model.quantized import QuantizedLinear
from ftkit.model.targets import (
    adapted_modules,
    check_patterns,
    check_targets,
    chosen_layers,
    linears_of_blocks,
    targets,
)
from ftkit.model.trained_rows import is_named, train_rows

if TYPE_CHECKING:
    from ftkit.recipe.section.adapter import AdapterSection


def lora_config(
    section: AdapterSection,
    net: PreTrainedModel,
    blocks: Collection[str],
    *,
    base_model: str,
    new_rows: Sequence[int] = (),
) -> LoraConfig:
    """Return PEFT's configuration for `section`, every target checked against `net`.

    Args:
        section: the recipe's.
        base_model: the recipe's name of the base, for adapter_config.json.
        net: the plain net, on meta.
        blocks: names of the decoder blocks; `all-linear` means the linears in these.
        new_rows: of the vocabulary; trained by themselves in tables that are not trained otherwise.

    Raises:
        ModelError: a target or a module to save matches nothing, or the configuration to continue cannot be read.
    """
    if section.lora_model_dir:
        config = read_adapter_config(Path(section.lora_model_dir))
        refuse_variants(config, Path(section.lora_model_dir))
        refuse_contradiction(section, config, net, blocks)
        if "lora_dropout" in section.model_fields_set:
            config.lora_dropout = section.lora_dropout or 0.0
    else:
        linears = linears_of_blocks(net, blocks)
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=section.lora_r,
            lora_alpha=section.lora_alpha,
            lora_dropout=section.lora_dropout or 0.0,
            target_modules=targets(section, net, linears),
            modules_to_save=list(section.lora_modules_to_save) or None,
            fan_in_fan_out=stored_transposed(section, net, linears),
            use_rslora=bool(section.peft_use_rslora),
            use_dora=bool(section.peft_use_dora),
            rank_pattern=dict(section.lora_rank_pattern),
            alpha_pattern=dict(section.lora_alpha_pattern),
            **chosen_layers(section, len(blocks)),
        )
    if config.modules_to_save and getattr(net.config, "tie_word_embeddings", False):
        config.ensure_weight_tying = True  # a trained copy of the embedding is the head's too, as in the base model
    config.base_model_name_or_path = base_model
    check_targets(config, net)
    if not section.lora_model_dir:
        check_patterns(config, net)
    rows = config.trainable_token_indices  # an adapter to continue may have its own
    if rows is None:
        rows = rows_to_train(section, config, net, new_rows) or None
    if isinstance(rows, list):  # PEFT means the embedding
        rows = {short_name(net, next(iter(tables_by_name(net)))): rows}
    config.trainable_token_indices = rows
    return config


def stored_transposed(section: AdapterSection, net: nn.Module, linears: Sequence[str]) -> bool:
    """Whether the linears keep their weights as (in, out), as GPT-2 does; the recipe may say so, or be silent."""
    found = any(isinstance(net.get_submodule(name), Conv1D) for name in linears)
    if section.lora_fan_in_fan_out and not found:
        raise ModelError(
            f"the linears of {type(net).__name__} keep their weights as (out, in), got true",
            where="lora_fan_in_fan_out",
            help="take it out: ftkit sees by itself how a model keeps them",
        )
    return found


def rows_to_train(
    section: AdapterSection, config: LoraConfig, net: PreTrainedModel, new_rows: Sequence[int]
) -> dict[str, list[int]]:
    """Rows to train by themselves, by the name of their table as PEFT takes it; those of the recipe and the new ones.

    A table that is trained as a whole or through LoRA needs none. A head with a bias gets none: PEFT's layer for it
    leaves the bias out.
    """
    given = section.peft_trainable_token_indices
    names = tables_by_name(net)
    adapted = adapted_modules(config, net)
    taken = {name for name in names if name in adapted or saved_whole(name, config)}
    free = {name: table for name, table in names.items() if name not in taken and getattr(table, "bias", None) is None}
    if getattr(net.config, "tie_word_embeddings", False):
        free = dict(list(free.items())[:1]) if not taken else {}  # what the embedding trains is the head's too
    rows = {short_name(net, name): list(new_rows) for name in free if new_rows}
    if given:
        embedding = next(iter(names))
        wanted = given if isinstance(given, Mapping) else {short_name(net, embedding): given}
        refuse_rows(wanted, list(free), net.config.vocab_size)
        for key, more in wanted.items():
            name = next(name for name in free if is_named(name, key))
            rows.setdefault(short_name(net, name), []).extend(more)
    return {name: sorted(set(found)) for name, found in rows.items()}


def tables_by_name(net: PreTrainedModel) -> dict[str, nn.Module]:
    """The token embedding and the head, in this order, by name."""
    ends = (net.get_input_embeddings(), net.get_output_embeddings())  # type: ignore[no-untyped-call]
    names = {id(module): name for name, module in net.named_modules()}
    return {names[id(table)]: table for table in ends if table is not None}


def saved_whole(name: str, config: LoraConfig) -> bool:
    """Whether module `name` is among the modules to save."""
    return any(is_named(name, key) for key in config.modules_to_save or ())


def short_name(net: nn.Module, name: str) -> str:
    """The last part of a module's name, or all of it where another module ends alike."""
    last = name.rpartition(".")[2]
    return last if sum(other.endswith(last) for other, _ in net.named_modules()) == 1 else name


def refuse_rows(wanted: Mapping[str, Sequence[int]], free: Sequence[str], vocab_size: int) -> None:
    """Raise if `peft_trainable_token_indices` names what is no table, or a table that is trained otherwise."""
    wrong = [key for key in wanted if not any(is_named(name, key) for name in free)]
    wrong += [f"{key}: {row}" for key, rows in wanted.items() for row in rows if not 0 <= row < vocab_size]
    if wrong:
        raise ModelError(
            f"these rows cannot be trained by themselves, got {', '.join(wrong)}",
            where="peft_trainable_token_indices",
            help=f"there are {vocab_size} rows of {' and '.join(free) or 'tables that are trained otherwise'}",
        )


def inject(net: PreTrainedModel, config: LoraConfig, *, trained: torch.dtype = torch.float32) -> None:
    """Put the adapter's layers into `net`, on meta, and leave only them trainable.

    PEFT is not shown the rows that are trained by themselves: they get a layer of ours.
    """
    rows, config.trainable_token_indices = config.trainable_token_indices, None
    config._register_custom_module({QuantizedLinear: FusedLoraLinear, nn.Linear: FusedLoraLinear})
    inject_adapter_in_model(config, net, adapter_name=ADAPTER, low_cpu_mem_usage=True)
    head: object = net.get_output_embeddings()  # type: ignore[no-untyped-call]
    for module in net.modules():
        if isinstance(module, ModulesToSaveWrapper) and trained == torch.float32:
            train_in_float32(module, is_head=module is head)
    if rows:
        train_rows(net, rows)
    for name, parameter in net.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.to(trained)


def train_in_float32(wrapper: ModulesToSaveWrapper, *, is_head: bool) -> None:
    """Make the trained copy of a saved module float32, like every trained parameter beside a 16-bit base.

    Hooks fit it to its neighbours: floats come in as float32 (under autocast the product is 16-bit anyway) and go out
    in the base's dtype; the head's logits stay float32.
    """
    copied, dtype = wrapper.modules_to_save[ADAPTER], next(wrapper.original_module.parameters()).dtype
    if dtype == torch.float32:
        return

    def widen(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x.float() if x.is_floating_point() else x for x in inputs)

    def narrow(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output if is_head else output.to(dtype)

    copied.float()
    copied.register_forward_pre_hook(widen)
    copied.register_forward_hook(narrow)


def write_adapter_config(config: LoraConfig, folder: Path) -> None:
    """Write adapter_config.json as PEFT does for a finished adapter."""
    finished = copy.deepcopy(config)
    finished.inference_mode = True
    finished.save_pretrained(str(folder))
