"""Rules about DeepSpeed and FSDP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftkit.recipe.keys import nearest
from ftkit.recipe.rule.base import Found, Rule, View, error, warning
from ftkit.recipe.rule.words import pascal_prefix
from ftkit.recipe.section.deepspeed_keys import unserved_keys

SHARDING = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard")
FSDP_WORDS = (*SHARDING, "offload", "auto_wrap")
OF_THE_RECIPE: Mapping[str, str] = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}


def deepspeed_and_fsdp(r: View) -> Found:
    """DeepSpeed and FSDP both decide how weights are spread over GPUs, so a run has one of them at most."""
    if r.deepspeed and uses_fsdp(r):
        yield error("fsdp" if r.fsdp else "fsdp_config", "deepspeed and fsdp cannot both be set", "keep one of them")


def deepspeed_contradicts_recipe(r: View) -> Found:
    """An inline DeepSpeed mapping repeats a number of the recipe with another value; `auto` takes the recipe's."""
    for theirs, ours in OF_THE_RECIPE.items():
        value = inline(r).get(theirs, "auto")
        if value != "auto" and value != r[ours]:
            message = f"deepspeed says {theirs}: {value}, the recipe {ours}: {r[ours]}"
            yield error(f"deepspeed.{theirs}", message, f"write `{theirs}: auto`")


def deepspeed_batch(r: View) -> Found:
    """DeepSpeed's `train_batch_size` is the batch of a step on all GPUs: a multiple of one GPU's."""
    total, own = inline(r).get("train_batch_size", "auto"), r.micro_batch_size * (r.gradient_accumulation_steps or 1)
    if isinstance(total, int | float) and own > 0 and (total < own or total % own):
        message = f"deepspeed says train_batch_size: {total}, which is no multiple of the recipe's {own} on each GPU"
        yield error("deepspeed.train_batch_size", message, "write `train_batch_size: auto`")


def deepspeed_two_precisions(r: View) -> Found:
    """An inline DeepSpeed mapping turns on both bf16 and fp16; a run computes in one of them."""
    if all(within(inline(r), name).get("enabled") is True for name in ("bf16", "fp16")):
        yield error("deepspeed.fp16.enabled", "deepspeed turns on both bf16 and fp16", "write `enabled: auto` in both")


def deepspeed_precision(r: View) -> Found:
    """An inline DeepSpeed mapping turns on another precision than the recipe."""
    for name in ("bf16", "fp16"):
        enabled = within(inline(r), name).get("enabled", "auto")
        if enabled != "auto" and r[name] in (True, False) and bool(enabled) != r[name]:
            shown = str(enabled).lower()
            message = f"deepspeed says {name}.enabled: {shown}, the recipe {name}: {str(r[name]).lower()}"
            yield error(f"deepspeed.{name}.enabled", message, "write `enabled: auto`")


def deepspeed_stage(r: View) -> Found:
    """ZeRO has stages 0 (nothing sharded) to 3 (optimizer, gradients and weights sharded)."""
    stage = within(inline(r), "zero_optimization").get("stage", 0)
    if stage not in (0, 1, 2, 3):
        yield error("deepspeed.zero_optimization.stage", f"`stage` must be 0, 1, 2 or 3, got {stage}", "take 2 or 3")


def deepspeed_has_optimizer(r: View) -> Found:
    """Optimizer and schedule are the recipe's; a DeepSpeed mapping that brings its own would be a second one."""
    for name, ours in (("optimizer", "optimizer"), ("scheduler", "lr_scheduler")):
        if name in inline(r):
            help = f"take `{name}` out of the mapping and set `{ours}` in the recipe"
            yield error(f"deepspeed.{name}", f"the {name} is the recipe's, not deepspeed's", help)


def deepspeed_unserved(r: View) -> Found:
    """A key of the DeepSpeed mapping asks for what ftkit does not do: it would be ignored, or change the result."""
    for key in unserved_keys(inline(r)):
        if key.path not in ("optimizer", "scheduler"):
            why = f": {key.reason}" if key.reason else ""
            yield error(f"deepspeed.{key.path}", f"ftkit does not serve `{key.path}`{why}", f"take `{key.path}` out")


def deepspeed_whole_matrices(r: View) -> Found:
    """ZeRO hands an optimizer flat slices of weights; Muon and Adafactor need to see whole matrices."""
    if r.deepspeed and r.optimizer in ("muon", "adafactor"):
        message = f"{r.optimizer} looks at whole matrices, and deepspeed gives an optimizer slices of them"
        yield error("optimizer", message, "take adamw_torch or one of 8 bits, or train without deepspeed")


def fsdp_word(r: View) -> Found:
    """`fsdp` lists how to shard; a word that means nothing would be ignored."""
    for index, word in enumerate(r.fsdp):
        if word.lower() not in FSDP_WORDS:
            guess = nearest(word.lower(), FSDP_WORDS)
            help = f"did you mean `{guess}`?" if guess else f"one of {', '.join(FSDP_WORDS)}"
            yield error(f"fsdp.{index}", f"no sharding is called `{word}`", help)


def fsdp_two_strategies(r: View) -> Found:
    """FSDP shards in one way."""
    named = [word.lower() for word in r.fsdp if word.lower() in SHARDING]
    if len(named) > 1:
        yield error("fsdp", f"fsdp can shard in one way only, got {' and '.join(named)}", "keep one of them")


def fsdp_strategy_twice(r: View) -> Found:
    """The list under `fsdp` and `sharding_strategy` in `fsdp_config` name different ways to shard."""
    named = [word.lower() for word in r.fsdp if word.lower() in SHARDING]
    other = str(fsdp(r, "sharding_strategy") or "").lower()
    if named and other and other != named[0]:
        message = f"fsdp says {named[0]}, fsdp_config {other}"
        yield error(f"fsdp_config.{key_of(r, 'sharding_strategy')}", message, "keep one of them")


def fsdp_reshard_contradicts(r: View) -> Found:
    """SHARD_GRAD_OP means that weights stay gathered after forward; `reshard_after_forward: true` says the opposite."""
    strategy = str(fsdp(r, "sharding_strategy") or " ".join(r.fsdp)).lower()
    if "shard_grad_op" in strategy and fsdp(r, "reshard_after_forward") is True:
        message = "shard_grad_op keeps weights gathered, reshard_after_forward: true does not"
        yield error(f"fsdp_config.{key_of(r, 'reshard_after_forward')}", message, "keep one of them")


def fsdp_version_is_known(r: View) -> Found:
    """There are two generations of FSDP; ftkit runs both kinds of recipe on the second."""
    for key, version in (("fsdp_version", r.fsdp_version), ("fsdp_config.fsdp_version", fsdp(r, "version"))):
        if version is not None and version not in (1, 2):
            yield error(key, f"`fsdp_version` must be 1 or 2, got {version}", "write 2")


def fsdp_8bit(r: View) -> Found:
    """Other tools keep the scales of 8-bit weights beside the parameter, where FSDP does not see them."""
    if r.load_in_8bit and uses_fsdp(r):
        message = "other tools cannot shard 8-bit weights by fsdp: they fail, or every rank holds them whole"
        yield warning("load_in_8bit", message, "load_in_4bit with adapter: qlora runs everywhere")


def checkpointing_twice(r: View) -> Found:
    """Both the recipe and FSDP are asked to recompute activations; it is done once."""
    if r.gradient_checkpointing and fsdp(r, "activation_checkpointing"):
        key = f"fsdp_config.{key_of(r, 'activation_checkpointing')}"
        yield warning(key, "activations are recomputed once, by gradient_checkpointing", f"take `{key}` out")


def offload_and_paged(r: View) -> Found:
    """With optimizer states on the CPU there is nothing to page to the CPU: a plain optimizer does the same faster."""
    if r.optimizer.startswith("paged_") and offloads(r):
        message = f"{r.optimizer} pages states out of the GPU, but they are offloaded to the CPU already"
        yield warning("optimizer", message, f"set optimizer: {r.optimizer.removeprefix('paged_')}, or do not offload")


def wrap_class(r: View) -> Found:
    """FSDP is told to wrap a class of another model family than the recipe's: it would wrap nothing."""
    family = pascal_prefix(r.model_type or "")
    model = r.model_type if family else " ".join(r.model_file("config.json").get("architectures") or ())
    family, wrapped = pascal_prefix(model), fsdp(r, "transformer_layer_cls_to_wrap") or ()
    for name in wrapped.split(",") if isinstance(wrapped, str) else wrapped:
        if family and not name.strip().startswith(family):
            key = f"fsdp_config.{key_of(r, 'transformer_layer_cls_to_wrap')}"
            yield error(key, f"{model} has no class {name.strip()}", f"name its block, or take `{key}` out")


def uses_fsdp(r: View) -> bool:
    """Whether the recipe asks for FSDP, in either dialect."""
    return bool(r.fsdp or r.fsdp_config)


def fsdp(r: View, name: str) -> Any:
    """A setting of `fsdp_config` by its name without prefix."""
    return r.fsdp_config.get(name, r.fsdp_config.get(f"fsdp_{name}"))


def key_of(r: View, name: str) -> str:
    """How `fsdp_config` spells `name`."""
    return name if name in r.fsdp_config else f"fsdp_{name}"


def inline(r: View) -> Mapping[str, Any]:
    """The DeepSpeed mapping in the recipe; empty for a path or nothing."""
    return r.deepspeed if isinstance(r.deepspeed, Mapping) else {}


def within(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The mapping under `key`; empty where there is none."""
    value = mapping.get(key)
    return value if isinstance(value, Mapping) else {}


def offloads(r: View) -> bool:
    """Whether optimizer states live on the CPU."""
    device = within(within(inline(r), "zero_optimization"), "offload_optimizer").get("device")
    by_name = isinstance(r.deepspeed, str) and "offload" in r.deepspeed
    return device == "cpu" or by_name or fsdp(r, "offload_params") is True or "offload" in r.fsdp


RULES: tuple[Rule, ...] = (
    deepspeed_and_fsdp,
    deepspeed_contradicts_recipe,
    deepspeed_batch,
    deepspeed_two_precisions,
    deepspeed_precision,
    deepspeed_stage,
    deepspeed_has_optimizer,
    deepspeed_unserved,
    deepspeed_whole_matrices,
    fsdp_word,
    fsdp_two_strategies,
    fsdp_strategy_twice,
    fsdp_reshard_contradicts,
    fsdp_version_is_known,
    fsdp_8bit,
    checkpointing_twice,
    offload_and_paged,
    wrap_class,
)
