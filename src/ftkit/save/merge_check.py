"""Is the merged model the adapter on its base? Measured on prompts, against PEFT's own layers.

Where float32 nets fit into memory: logits of the files as written against those of the base with PEFT's adapter around
it, in float32 and in the dtype of the files. The adapter's own effect stands beside, since a difference means
something only against it. Where they do not fit: outputs of a sample of adapted layers.
"""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from ftkit.errors import CheckpointError
from ftkit.model.checkpoint_files import open_weights
from ftkit.model.plain import plain_net
from ftkit.save.merge import Merged

# Relative difference of float32 logits, median over positions, that only a wrong merge has: float32 sums in another
# order, and 8 or 11 bits of each weight.
LIMITS = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
SHARE_OF_MEMORY = 0.7
INSIDE = ("", "base_layer.", "token_adapter.base_layer.")  # where PEFT's wrappers keep a module's own parameters
NUM_LAYERS, NUM_INPUTS = 4, 16  # of a sample


@dataclass(frozen=True, slots=True)
class Difference:
    """What was measured.

    Args:
        what: `logits` or `layers`.
        number: positions, or layers.
        effect: of the adapter: |with - without| / |without|, the median.
        float32: |merged - adapter on base| / |adapter on base| computed in float32, the median.
        largest: the same as a largest absolute difference.
        own: the median computed in the dtype of the files; None where that is float32, and for layers.
        same_top: share of positions whose most likely token is the same; None for layers.
    """

    what: str
    number: int
    effect: float
    float32: float
    largest: float
    own: float | None = None
    same_top: float | None = None


def check_merged(merged: Merged, folder: Path, prompts: Sequence[Tensor]) -> Difference:
    """Compare what was written in `folder` with the adapter on its base.

    Args:
        prompts: token ids, (1, T) each.

    Raises:
        CheckpointError: they are not the same model.
    """
    num_bytes = 4 * sum(value.numel() for value in merged.base.state.values())
    fits = num_bytes < SHARE_OF_MEMORY * psutil.virtual_memory().available
    found = compare_logits(merged, folder, prompts) if fits and not merged.in_files else compare_layers(merged, folder)
    limit = LIMITS[merged.dtype]
    if not found.float32 <= limit:  # NaN is no difference either
        raise CheckpointError(
            f"the merged model is not the adapter on its base: its {found.what} are off by {found.float32:.2g}, "
            f"of which {limit:g} could be rounding; nothing was written",
            where=str(merged.adapter.folder),
            help="merge with PEFT's merge_and_unload, and please report this",
        )
    return found


@torch.no_grad()
def compare_logits(merged: Merged, folder: Path, prompts: Sequence[Tensor]) -> Difference:
    """Both models on the prompts, one after the other in memory."""
    net = base_net(merged)
    without = logits_of(net, prompts)
    put_adapter(net, merged)
    adapter = logits_of(net, prompts)
    own = None if merged.dtype == torch.float32 else logits_of(in_dtype(net, merged.dtype), prompts)
    del net
    gc.collect()
    mine = logits_of(written(folder, torch.float32), prompts)
    other = None if own is None else relative(logits_of(written(folder, merged.dtype), prompts), own)
    return Difference(
        "logits",
        adapter.shape[0],
        relative(adapter, without),
        relative(mine, adapter),
        float((mine - adapter).abs().max()),
        other,
        float((mine.argmax(-1) == adapter.argmax(-1)).float().mean()),
    )


def base_net(merged: Merged) -> PreTrainedModel:
    """The base in float32, with the merged net's vocabulary."""
    config = copy.deepcopy(merged.base.config)
    config.vocab_size = merged.rows
    net = plain_net(config, dtype=torch.float32, trust_remote_code=merged.base.model.trust_remote_code)
    names = [name for name in net.state_dict() if name not in merged.base.tied and name in merged.base]
    values = {name: merged.with_rows(name, merged.base.read(name)) for name in names}
    net.load_state_dict({name: v.float() if v.is_floating_point() else v for name, v in values.items()}, False, True)
    net.tie_weights()
    net.eval()  # type: ignore[no-untyped-call]
    return net


def put_adapter(net: PreTrainedModel, merged: Merged) -> None:
    """Put PEFT's layers with the adapter's values around those of `net`."""
    adapter, config = merged.adapter, copy.deepcopy(merged.adapter.config)
    config.init_lora_weights, config.inference_mode, config.lora_dropout = True, True, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of what PEFT's own merge would do to tied ends; nothing here is
        inject_adapter_in_model(config, net)
    state = {
        f"{module}.{'token_adapter.' if role == 'trainable_tokens_delta' else ''}{peft_role(role)}": adapter.read(name)
        for module, change in adapter.changes.items()
        for role, name in change.roles.items()
    }
    copies = tuple(f"{name}." for name, module in net.named_modules() if isinstance(module, ModulesToSaveWrapper))
    parameters = dict(net.named_parameters(remove_duplicate=False))
    for name, mine in adapter.whole.items():
        if name.startswith(copies):
            state[name] = merged.with_rows(name, adapter.read(mine))
        else:
            module, _, attribute = name.rpartition(".")
            held = next(n for w in INSIDE if (n := f"{module}.{w}{attribute}") in parameters)
            parameters[held].data.copy_(merged.with_rows(name, adapter.read(mine)))
    set_peft_model_state_dict(net, state)
    net.eval()  # type: ignore[no-untyped-call]


def peft_role(role: str) -> str:
    """How PEFT's files go on behind the module's name."""
    if role.endswith(".bias") or role not in ("lora_A", "lora_B"):
        return role
    return f"{role}.weight"


def in_dtype(net: nn.Module, dtype: torch.dtype) -> nn.Module:
    """`net`, its floats cast."""
    return net.to(dtype)


def written(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The merged model as anyone loads it."""
    net: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    net.eval()  # type: ignore[no-untyped-call]
    return net


def logits_of(net: Any, prompts: Sequence[Tensor]) -> Tensor:
    """Logits of every position of every prompt, (T, V) in float32."""
    return torch.cat([net(input_ids=ids, use_cache=False).logits[0].float() for ids in prompts])


def relative(values: Tensor, reference: Tensor) -> float:
    """|values - reference| / |reference| by row, the median: one expert that another rounding picks does not count."""
    norms = torch.linalg.vector_norm(values - reference, dim=-1) / torch.linalg.vector_norm(reference, dim=-1)
    return float(norms.median())


@torch.no_grad()
def compare_layers(merged: Merged, folder: Path) -> Difference:
    """Some adapted linears on random inputs: their weights in the files against PEFT's layers over the base's."""
    files = open_weights(str(folder), None)
    names = set(files.names()) & set(merged.base.weights.names())
    adapted = [m for m, c in merged.adapter.changes.items() if "lora_A" in c.roles and f"{m}.weight" in names]
    if not adapted:
        raise CheckpointError(
            "nothing of this merge can be checked: no adapted linear is a tensor of the files",
            where=str(merged.adapter.folder),
            help="merge with --no-check, or with PEFT's merge_and_unload",
        )
    chosen = adapted[:: max(1, len(adapted) // NUM_LAYERS)][:NUM_LAYERS]
    rows = [compare_layer(merged, module, files.read(f"{module}.weight").float()) for module in chosen]
    return Difference(
        "layers",
        len(chosen),
        max(row[0] for row in rows),
        max(row[1] for row in rows),
        max(row[2] for row in rows),
    )


def compare_layer(merged: Merged, module: str, mine: Tensor) -> tuple[float, float, float]:
    """One linear: the adapter's effect, the relative and the largest difference of its outputs."""
    name = f"{module}.weight"
    base = (merged.base.weights.read(name) if module in merged.in_files else merged.base.read(name)).float()
    if merged.is_transposed(module):
        base, mine = base.t().contiguous(), mine.t()
    inputs = torch.randn(NUM_INPUTS, base.shape[1], generator=torch.Generator().manual_seed(0))
    without, with_adapter = inputs @ base.t(), peft_layer(merged, module, base)(inputs)
    found = inputs @ mine.t()
    return relative(with_adapter, without), relative(found, with_adapter), float((found - with_adapter).abs().max())


def peft_layer(merged: Merged, module: str, base: Tensor) -> nn.Module:
    """PEFT's layer over one weight (O, D)."""
    change, read = merged.adapter.changes[module], merged.adapter.read
    linear = nn.Linear(base.shape[1], base.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(base)
    rank = read(change.roles["lora_A"]).shape[0]
    dora = "lora_magnitude_vector" in change.roles
    config = LoraConfig(r=rank, lora_alpha=change.scaling * rank, target_modules=["layer"], use_dora=dora)
    net = inject_adapter_in_model(config, nn.ModuleDict({"layer": linear}))
    roles = {role: name for role, name in change.roles.items() if not role.endswith(".bias")}
    set_peft_model_state_dict(net, {f"layer.{peft_role(role)}": read(name) for role, name in roles.items()})
    layer: nn.Module = net["layer"]
    return layer.eval()
