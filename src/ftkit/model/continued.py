"""An adapter to continue (`lora_model_dir`): its configuration, and where the recipe says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from peft import LoraConfig
from torch import Tensor
from transformers import PreTrainedModel

from ftkit.errors import ModelError
from ftkit.model.checkpoint_files import Weights
from ftkit.model.naming import PEFT_PREFIX, adapter_files
from ftkit.model.targets import adapted_modules, chosen_layers, linears_of_blocks, targets
from ftkit.model.trained_rows import DELTA

if TYPE_CHECKING:
    from ftkit.model.plan import ModelPlan
    from ftkit.recipe.section.adapter import AdapterSection

# What PEFT's newer variants and rarely used options are when they are off; on, they compute something else.
USUAL = {
    "bias": "none",
    "layer_replication": None,
    "target_parameters": None,
    "alora_invocation_tokens": None,
    "use_qalora": False,
    "use_bdlora": None,
    "arrow_config": None,
    "kasa_config": None,
    "velora_config": None,
    "monteclora_config": None,
    "megatron_config": None,
}
CHANGES_BASE = ("pissa", "olora", "corda", "lora_ga")  # initial values that were taken out of the base's weights
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def read_adapter_config(folder: Path) -> LoraConfig:
    """Read the configuration of the adapter to continue.

    Raises:
        ModelError: there is none, or it is not one of LoRA.
    """
    where = f"lora_model_dir: {folder}"
    if not (folder / "adapter_config.json").is_file():
        raise ModelError("no adapter_config.json there", where=where, help="give the folder of a PEFT adapter")
    try:
        config = LoraConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as problem:
        raise ModelError(
            f"adapter_config.json cannot be read ({type(problem).__name__}: {problem})",
            where=where,
            help="copy the adapter's folder again; it must be as PEFT wrote it",
        ) from problem
    wrong = wrong_types(config)
    if wrong:
        raise ModelError(
            f"adapter_config.json is not that of a LoRA adapter, got {', '.join(wrong)}",
            where=where,
            help="give the folder of a LoRA adapter as PEFT wrote it",
        )
    config.inference_mode = False
    return config


def refuse_variants(config: LoraConfig, folder: Path) -> None:
    """Raise for an adapter whose layers compute what ftkit's do not; values that were drawn in any way are in the file.

    Raises:
        ModelError: names every setting.
    """
    values = {name: getattr(config, name) or usual for name, usual in USUAL.items()}  # an empty list is none
    strange = [f"{name} {value!r}" for name, value in values.items() if value != USUAL[name]]
    if isinstance(config.init_lora_weights, str) and config.init_lora_weights.startswith(CHANGES_BASE):
        strange.append(f"init_lora_weights {config.init_lora_weights!r}, which changes the base")
    if strange:
        raise ModelError(
            f"this kind of LoRA cannot go on in ftkit, got {', '.join(strange)}",
            where=f"lora_model_dir: {folder}",
            help="merge it into its base with PEFT, and start a new adapter on that",
        )
    config.init_lora_weights = True


def wrong_types(config: LoraConfig) -> list[str]:
    """What of the settings that every LoRA adapter has is of no use, as `name value`."""
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        return [f"peft_type {kind}"]
    good = {
        "r": isinstance(config.r, int) and config.r > 0,
        "lora_alpha": isinstance(config.lora_alpha, int | float),
        "target_modules": isinstance(config.target_modules, str | set),
        "modules_to_save": isinstance(config.modules_to_save, list | None),
        "use_dora": isinstance(config.use_dora, bool),
        "use_rslora": isinstance(config.use_rslora, bool),
    }
    return [f"{name} {getattr(config, name)!r}" for name, is_good in good.items() if not is_good]


def refuse_contradiction(
    section: AdapterSection, config: LoraConfig, net: PreTrainedModel, blocks: Collection[str]
) -> None:
    """Raise if the recipe says otherwise than the adapter it continues; it may repeat its settings, or be silent."""
    saved = sorted(config.modules_to_save or ())
    pairs: dict[str, tuple[object, object]] = {
        "lora_r": (section.lora_r, config.r),
        "lora_alpha": (section.lora_alpha, config.lora_alpha),
        "lora_modules_to_save": (sorted(section.lora_modules_to_save or ()), saved),
        "peft_use_dora": (bool(section.peft_use_dora), bool(config.use_dora)),
        "peft_use_rslora": (bool(section.peft_use_rslora), bool(config.use_rslora)),
        "lora_rank_pattern": (dict(section.lora_rank_pattern), config.rank_pattern or {}),
        "lora_alpha_pattern": (dict(section.lora_alpha_pattern), config.alpha_pattern or {}),
    }
    given = {key for key in section.model_fields_set if getattr(section, key) is not None}
    wrong = [
        f"{key} {shown(mine)} (the adapter has {shown(theirs)})"
        for key, (mine, theirs) in pairs.items()
        if key in given and mine != theirs
    ]
    wrong += contradicting_targets(section, config, net, linears_of_blocks(net, blocks), len(blocks))
    if wrong:
        raise ModelError(
            f"the recipe contradicts the adapter it continues, got {', '.join(wrong)}",
            where=f"lora_model_dir: {section.lora_model_dir}",
            help="take the keys out of the recipe, or start a new adapter",
        )


def contradicting_targets(
    section: AdapterSection, config: LoraConfig, net: PreTrainedModel, linears: list[str], num_blocks: int
) -> list[str]:
    """The recipe's target keys, if they adapt other modules than the adapter does; names may differ, modules not."""
    theirs = set(adapted_modules(config, net))
    names = sorted({name.rpartition(".")[2] for name in theirs})
    if section.lora_target_linear or section.lora_target_modules:
        layers = chosen_layers(section, num_blocks)
        wanted = LoraConfig(target_modules=targets(section, net, linears), **layers)
        if set(adapted_modules(wanted, net)) == theirs:
            return []
    elif "lora_target_linear" not in section.model_fields_set or theirs != set(linears):
        return []
    names_of_keys = ("lora_target_linear", "lora_target_modules", "peft_layers_to_transform")
    keys = [key for key in names_of_keys if key in section.model_fields_set]
    mine = " and ".join(f"{key} {shown(getattr(section, key))}" for key in keys if getattr(section, key) is not None)
    return [f"{mine} (the adapter is on {len(theirs)} modules: {', '.join(names)})"]


def shown(value: object) -> str:
    """A setting as a recipe would write it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def read_adapter(plan: ModelPlan, net: PreTrainedModel) -> Mapping[str, Tensor] | None:
    """Read the adapter to continue, by PEFT's names; None when a new one starts.

    Beside the adapter's own parameters the file may hold whole tables of the vocabulary: PEFT puts them there when the
    vocabulary grew. Rows that the recipe's new tokens need, and the adapter never had, may be missing.

    Raises:
        ModelError: there is no file, or its tensors are others than the net's adapter has.
    """
    if plan.adapter_folder is None:
        return None
    folder = Path(plan.adapter_folder)
    stored = Weights([adapter_file(folder)])
    parameters = dict(net.named_parameters(remove_duplicate=False))
    wanted = {name: tuple(parameters[mine].shape) for name, mine in adapter_files(net).items()}
    vocabulary = [p for p in plan.root if p.shape[0] == plan.config.vocab_size]
    tables = {name: p.shape for p in vocabulary for name in table_names(p.name)}
    shapes = {name: stored.shape(name) for name in stored.names()}
    tied = {PEFT_PREFIX + name for name, _ in plan.tied}  # PEFT may write both ends
    fresh = {name for name in wanted if name.endswith(DELTA)} if not brings_rows(folder) else set()
    report = [f"missing: {name}" for name in wanted.keys() - shapes.keys() - fresh]
    report += [f"unexpected: {name}" for name in shapes.keys() - wanted.keys() - tables.keys() - tied]
    report += [
        f"misshapen: {name}, got {shapes[name]}, expected {shape}"
        for name, shape in (tables | wanted).items()
        if shapes.get(name, shape) != shape
    ]
    if report:
        raise ModelError(
            "the adapter does not fit the net\n  " + "\n  ".join(sorted(report)), where=f"lora_model_dir: {folder}"
        )
    return {name: stored.read(name) for name in shapes}


def table_names(name: str) -> tuple[str, str]:
    """What PEFT's file calls a frozen table: its own name, or that of the base inside an adapted module."""
    module, _, attribute = name.rpartition(".")
    return PEFT_PREFIX + name, f"{PEFT_PREFIX}{module}.base_layer.{attribute}"


def adapter_file(folder: Path) -> Path:
    """The file of an adapter's weights: safetensors, or what PEFT wrote before 2023, read without running its code."""
    found = [folder / name for name in ADAPTER_FILES if (folder / name).is_file()]
    if not found:
        raise ModelError(
            f"no {ADAPTER_FILES[0]} there", where=f"lora_model_dir: {folder}", help="give the folder of a PEFT adapter"
        )
    return found[0]


def brings_rows(folder: Path) -> bool:
    """Whether an adapter has rows of tokens of its own."""
    return read_adapter_config(folder).trainable_token_indices is not None
