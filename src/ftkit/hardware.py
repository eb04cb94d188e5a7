"""What this machine cannot honour of a recipe, and what is done instead.

A recipe written for a node of A100s should still run as a smoke test on a laptop. Each key the machine cannot honour is
replaced by the nearest thing and listed with the reason; nothing is replaced without a line in that list, and
`strict: true` turns the list into errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftkit.errors import RecipeError
from ftkit.recipe import Recipe
from ftkit.unserved import listed, refuse_unserved


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts about a process's device that a recipe depends on.

    Args:
        device_type: `cpu` or `cuda`.
        bf16: the device multiplies in bfloat16 at speed.
        num_processes: processes in this run.
    """

    device_type: str
    bf16: bool
    num_processes: int = 1


@dataclass(frozen=True, slots=True)
class Substitution:
    """One key of the recipe that is not honoured as written."""

    key: str
    asked: str
    used: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.asked} -> {self.used} ({self.reason})"


# A rule looks at the recipe and yields (section name, {field: replacement}, substitution).
Change = tuple[str, dict[str, Any], Substitution]
Rule = Callable[[Recipe, Machine], Iterator[Change]]

PAGED = {
    "paged_adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw_32bit": "adamw_torch",
    "paged_lion_8bit": "lion_8bit",
    "paged_lion_32bit": "lion_32bit",
}


def fit_to_machine(recipe: Recipe, machine: Machine) -> tuple[Recipe, tuple[Substitution, ...]]:
    """Return the recipe as this machine can run it, and every change that was needed.

    Raises:
        RecipeError: `strict: true` and at least one key cannot be honoured; or a key that is not served yet.
    """
    refuse_unserved(recipe)
    substitutions: list[Substitution] = []
    for rule in RULES:
        for section, fields, substitution in rule(recipe, machine):
            changed = getattr(recipe, section).model_copy(update=fields)
            recipe = replace(recipe, **{section: changed})
            substitutions.append(substitution)
    if recipe.general.strict:
        refuse(substitutions)
    return recipe, tuple(substitutions)


def refuse(substitutions: Sequence[Substitution]) -> None:
    """Raise one error naming all `substitutions`, if there are any."""
    if substitutions:
        raise RecipeError(
            "strict: true, and this machine cannot honour\n  " + "\n  ".join(map(str, substitutions)),
            help="change these keys, run on a machine that has them, or set strict: false",
        )


def detect_machine(num_processes: int = 1) -> Machine:
    """Look at this process's device. Imports torch."""
    import torch

    if torch.cuda.is_available():
        return Machine(
            "cuda", bf16=torch.cuda.is_bf16_supported(including_emulation=False), num_processes=num_processes
        )
    return Machine("cpu", bf16=False, num_processes=num_processes)


def _attention(recipe: Recipe, machine: Machine) -> Iterator[Change]:
    model = recipe.model
    if model.attention in {"auto", "sdpa"} and model.attn_implementation in {None, "sdpa"}:
        return
    key, asked = attention_key(recipe)
    on_cpu = machine.device_type == "cpu" and model.attention != "eager"
    reason = "it needs a GPU" if on_cpu else "other kernels come in a later version"
    used = "torch's scaled dot product attention, one document at a time"
    flags = dict.fromkeys(("flash_attention", "flex_attention", "eager_attention"))
    yield "model", {**flags, "attn_implementation": "sdpa"}, Substitution(key, asked, used, reason)


def attention_key(recipe: Recipe) -> tuple[str, str]:
    """The key that says which attention is wanted, and its value."""
    if recipe.model.attn_implementation:
        return "attn_implementation", recipe.model.attn_implementation
    names = ("flash_attention", "flex_attention", "eager_attention")
    return next((name, "true") for name in names if getattr(recipe.model, name))


def _precision(recipe: Recipe, machine: Machine) -> Iterator[Change]:
    training = recipe.training
    named = training.precision or ("bf16" if training.bf16 == "full" else None)
    key, asked = ("precision", named) if training.precision else ("bf16", "full" if named else "true")
    if not machine.bf16 and (training.bf16 is True or "bf16" in (named or "")):
        used = {"bf16": False, "precision": None}
        yield "training", used, Substitution(key, str(asked), "fp32", "this device has no fast bfloat16")
    key, asked = ("precision", named) if named == "mp_fp16_autocast" else ("fp16", "true")
    reason = "fp16 needs a GPU" if machine.device_type == "cpu" else "deepspeed scales its losses itself, later here"
    if (training.fp16 or named == "mp_fp16_autocast") and (machine.device_type == "cpu" or recipe.backend.deepspeed):
        used = {"bf16": machine.bf16, "fp16": False, "precision": None}
        yield "training", used, Substitution(key, str(asked), "bf16" if machine.bf16 else "fp32", reason)
    if training.bf16 == "auto" and not machine.bf16 and machine.device_type == "cuda" and not recipe.backend.deepspeed:
        reason = "this GPU has no fast bfloat16"
        yield "training", {"bf16": False, "fp16": True}, Substitution("bf16", "auto", "fp16", reason)
    if training.tf32 is True and machine.device_type == "cpu":
        yield "training", {"tf32": False}, Substitution("tf32", "true", "fp32", "tf32 is a mode of NVIDIA GPUs")


def _offload(recipe: Recipe, machine: Machine) -> Iterator[Change]:
    if machine.device_type == "cpu" and recipe.training.gradient_checkpointing == "offload":
        reason = "without a GPU they lie in the host's memory anyway"
        substitution = Substitution("gradient_checkpointing", "offload", "true", reason)
        yield "training", {"gradient_checkpointing": True}, substitution
    if machine.device_type == "cpu" and recipe.training.activation_offloading:
        reason = "without a GPU they lie in the host's memory anyway"
        substitution = Substitution("activation_offloading", "true", "false", reason)
        yield "training", {"activation_offloading": None}, substitution


def _paged_optimizer(recipe: Recipe, machine: Machine) -> Iterator[Change]:
    name = recipe.optimization.optimizer
    if machine.device_type == "cpu" and name in PAGED:
        used = PAGED[name]
        yield (
            "optimization",
            {"optimizer": used},
            Substitution("optimizer", name, used, "paging moves memory off a GPU"),
        )


def _sharding(recipe: Recipe, machine: Machine) -> Iterator[Change]:
    """One process has nobody to share with, unless it moves memory to the host."""
    backend = recipe.backend
    if machine.num_processes == 1:
        reason = "there is one process: start one a GPU to share the weights"
        if backend.deepspeed:
            asked = backend.deepspeed if isinstance(backend.deepspeed, str) else "a mapping"
            yield (
                "backend",
                {"deepspeed": None},
                Substitution("deepspeed", asked, "one process, nothing sharded", reason),
            )
        if backend.fsdp:
            asked = " ".join(backend.fsdp)
            yield "backend", {"fsdp": ()}, Substitution("fsdp", asked, "one process, nothing sharded", reason)
    elif backend.fsdp:
        yield from _of_fsdp(recipe, machine)


def _of_fsdp(recipe: Recipe, machine: Machine) -> Iterator[Change]:
    """What FSDP2 does otherwise than FSDP1, or than was asked."""
    backend, config = recipe.backend, recipe.backend.fsdp_config
    if backend.fsdp_version == 1:
        yield (
            "backend",
            {},
            Substitution("fsdp_version", "1", "2", "ftkit shards with FSDP2; the arithmetic is the same"),
        )
    if machine.device_type == "cpu" and (config.get("offload_params") or "offload" in backend.fsdp):
        reason = "without a GPU everything lies in the host's memory anyway"
        yield "backend", {}, Substitution("fsdp_config.offload_params", "true", "false", reason)
    for key in ("auto_wrap_policy", "min_num_params", "mixed_precision_policy"):
        value = config.get(key)
        if value is not None and value != "TRANSFORMER_BASED_WRAP":
            used = "the precision of the recipe" if key == "mixed_precision_policy" else "a unit for each decoder block"
            yield "backend", {}, Substitution(f"fsdp_config.{key}", str(value), used, "there is no other way in ftkit")
    if config.get("activation_checkpointing") and not recipe.training.gradient_checkpointing:
        reason = "it is the same switch"
        checkpointing = Substitution("fsdp_config.activation_checkpointing", "true", "gradient_checkpointing", reason)
        yield "training", {"gradient_checkpointing": True}, checkpointing


def _unserved(recipe: Recipe, machine: Machine) -> Iterator[Change]:
    for key, asked, used in listed(recipe):
        yield "general", {}, Substitution(key, asked, used, "comes in a later version")


RULES: tuple[Rule, ...] = (_attention, _precision, _offload, _paged_optimizer, _sharding, _unserved)
