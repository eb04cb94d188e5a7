"""What an adapter changes, read from PEFT's files: parameter by parameter of the net, whoever wrote them.

In: a folder with adapter_config.json and adapter_model.safetensors or .bin. Out: an `Adapter`. Names in the file come
with whatever prefixes the writer had around its model; here they are transformers' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peft import LoraConfig
from peft.utils.other import get_pattern_key
from torch import Tensor

from ftkit.errors import ModelError
from ftkit.model.checkpoint_files import Weights
from ftkit.model.continued import read_adapter_config
from ftkit.model.naming import PEFT_PREFIX

FILES = ("adapter_model.safetensors", "adapter_model.bin")  # the first that is there is taken
CONFIG = "adapter_config.json"
# Modules that compilers, FSDP, checkpointing and PEFT put around others; no part of a module's own name.
WRAPPERS = frozenset(
    {
        "_orig_mod",
        "_fsdp_wrapped_module",
        "_checkpoint_wrapped_module",
        "base_layer",
        "original_module",
        "token_adapter",
    }
)
ROLES = frozenset(
    {
        "lora_A",
        "lora_B",
        "lora_embedding_A",
        "lora_embedding_B",
        "lora_magnitude_vector",
        "trainable_tokens_delta",
    }
)
# Settings that make something else of A and B than W + s B A.
REFUSED = (
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "megatron_config",
)
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # initial values that alter the base


@dataclass
class Change:
    """What is done to one module's weight: names in the file by role, such as `lora_A`; and alpha / r.

    Args:
        rows: the ids whose rows `trainable_tokens_delta` holds.
    """

    roles: dict[str, str] = field(default_factory=dict)
    scaling: float = 1.0
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Adapter:
    """An adapter, opened.

    Args:
        changes: by name of the module in the net, or of a tensor in the base's files without `.weight`.
        whole: parameters that the file holds themselves -> their names in it.
    """

    folder: Path
    config: LoraConfig
    weights: Weights
    changes: Mapping[str, Change]
    whole: Mapping[str, str]

    def read(self, name: str) -> Tensor:
        """A tensor of the file."""
        return self.weights.read(name)


def open_adapter(folder: Path) -> Adapter:
    """Open the adapter in `folder`.

    Raises:
        ModelError: there is none, or one that is more than LoRA and trained copies.
    """
    refuse_absent(folder)
    config = read_adapter_config(folder)
    refuse_special(config, folder)
    weights = Weights([next(folder / name for name in FILES if (folder / name).is_file())])
    changes: dict[str, Change] = {}
    whole: dict[str, str] = {}
    for name in weights.names():
        module, role = split_name(name)
        if role is None:
            whole[module] = name
        else:
            changes.setdefault(module, Change()).roles[role] = name
    for module, change in changes.items():
        change.scaling = scaling_of(config, module)
        change.rows = token_rows(config, module)
        check_whole(change, module, weights)
    return Adapter(folder, config, weights, changes, whole)


def refuse_absent(folder: Path) -> None:
    """Raise where `folder` holds no adapter, and say what it holds instead and where there is one."""
    if not folder.is_dir():
        raise ModelError("no such folder", where=f"adapter: {folder}", help="train first, or give --adapter FOLDER")
    absent = [] if (folder / CONFIG).is_file() else [CONFIG]
    absent += [] if any((folder / name).is_file() for name in FILES) else [" or ".join(FILES)]
    if not absent:
        return
    near = [path.parent for place in (folder, folder.parent) for path in sorted(place.glob(f"*/{FILES[0]}"))]
    shards = sorted(path.name for path in folder.iterdir() if is_training_state(path))
    what = f"the folder holds no adapter, {' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing"
    if shards:
        what += f"; it holds shards of a training state, got {', '.join(shards[:4])}"
    elif any(folder.glob("*.safetensors")):
        what += "; it holds a whole model, which needs no merge"
    listed = ", ".join(map(str, dict.fromkeys(near)))
    help = f"give one that does: {listed}" if near else "give the folder that training wrote the adapter to"
    raise ModelError(what, where=f"adapter: {folder}", help=help)


def is_training_state(path: Path) -> bool:
    """Whether a file or folder is what FSDP and DeepSpeed save of a run in several processes."""
    return path.name.startswith(("pytorch_model_fsdp", "global_step", "optimizer_")) or path.suffix == ".distcp"


def refuse_special(config: LoraConfig, folder: Path) -> None:
    """Raise for settings under which a merge would not be W + s B A."""
    found = [f"{name} {value}" for name in REFUSED if (value := getattr(config, name, None))]
    start = str(config.init_lora_weights).lower()
    if start.startswith(CHANGES_BASE):
        found.append(f"init_lora_weights {start}")
    if found:
        raise ModelError(
            f"the adapter needs more than a merge into the base's weights, got {'; '.join(found)}",
            where=str(folder / CONFIG),
            help="merge it with PEFT's merge_and_unload; experts adapted as parameters are not served yet"
            if config.target_parameters
            else "convert it to a plain LoRA with PEFT first",
        )


def split_name(name: str) -> tuple[str, str | None]:
    """Take a name in the file apart: module and role, or a parameter's whole name and None.

    The adapter's own name, which PEFT leaves out of its files and others do not, is dropped behind a role.
    """
    parts = [part for part in name.removeprefix("module.").split(".") if part not in WRAPPERS]
    while parts[:2] == ["base_model", "model"]:
        parts = parts[2:]
    if "modules_to_save" in parts:
        index = parts.index("modules_to_save")
        named = parts[index + 1 : index + 2] == ["default"]
        parts = parts[:index] + parts[index + 1 + named :]
    for index, part in enumerate(parts):
        if part in ROLES:
            is_bias = parts[-1] == "bias"
            return ".".join(parts[:index]), f"{part}.bias" if is_bias else part
    return ".".join(parts), None


def scaling_of(config: LoraConfig, module: str) -> float:
    """Scale of B A for a module: alpha / r, or alpha / sqrt(r) for rsLoRA, each with its pattern."""
    ranks, alphas = dict(config.rank_pattern or {}), dict(config.alpha_pattern or {})
    rank = ranks.get(get_pattern_key(list(ranks), module), config.r)
    alpha: float = alphas.get(get_pattern_key(list(alphas), module), config.lora_alpha)
    return float(alpha / (rank**0.5 if config.use_rslora else rank))


def token_rows(config: LoraConfig, module: str) -> tuple[int, ...]:
    """The ids whose rows PEFT trains in a module, if any."""
    given: Any = getattr(config, "trainable_token_indices", None) or {}
    if not isinstance(given, dict):
        return tuple(given)
    found = [rows for name, rows in given.items() if module == name or module.endswith(f".{name}")]
    return tuple(found[0]) if found else ()


def check_whole(change: Change, module: str, weights: Weights) -> None:
    """Raise where a module's tensors do not belong together."""
    roles = set(change.roles)
    pairs = [{"lora_A", "lora_B"}, {"lora_embedding_A", "lora_embedding_B"}]
    lonely = [sorted(pair & roles)[0] for pair in pairs if len(pair & roles) == 1]
    if lonely or ("lora_magnitude_vector" in roles and not any(pair <= roles for pair in pairs)):
        raise ModelError(
            f"the adapter is not whole, got {', '.join(sorted(roles))} alone", where=f"{PEFT_PREFIX}{module}"
        )
    empty = [name for name in change.roles.values() if 0 in weights.shape(name)]
    if empty:
        raise ModelError(
            "the adapter holds an empty tensor: it was saved while its weights were sharded",
            where=empty[0],
            help="save it again with the weights gathered",
        )
    if "trainable_tokens_delta" in roles:
        num_rows = weights.shape(change.roles["trainable_tokens_delta"])[0]
        if num_rows != len(change.rows):
            raise ModelError(
                f"{num_rows} trained rows, but trainable_token_indices names {len(change.rows)}",
                where=f"{PEFT_PREFIX}{module}",
            )
