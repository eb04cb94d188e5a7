"""Rules about the optimizer, the learning rate and the length of a run."""

from __future__ import annotations

from ftkit.catalog import OPTIMIZERS, SCHEDULES
from ftkit.recipe.keys import nearest
from ftkit.recipe.rule.base import Found, Rule, View, error, warning

# key -> (least, greatest, whether the least itself is allowed); a greatest of None means no bound.
RANGES: dict[str, tuple[float, float | None, bool]] = {
    "micro_batch_size": (1, None, True),
    "gradient_accumulation_steps": (1, None, True),
    "eval_batch_size": (1, None, True),
    "num_epochs": (0, None, False),
    "max_steps": (1, None, True),
    "seed": (0, 2**32 - 1, True),
    "max_grad_norm": (0, None, True),
    "learning_rate": (0, None, False),
    "warmup_steps": (0, None, True),
    "weight_decay": (0, None, True),
    "adam_beta1": (0, 1, True),
    "adam_beta2": (0, 1, True),
    "adam_epsilon": (0, None, False),
    "cosine_min_lr_ratio": (0, 1, True),
    "cosine_constant_lr_ratio": (0, 1, True),
    "neftune_noise_alpha": (0, None, True),
    "loraplus_lr_ratio": (0, None, False),
    "sequence_len": (2, None, True),
    "save_total_limit": (1, None, True),
    "early_stopping_patience": (1, None, True),
    "eval_table_size": (0, None, True),
    "eval_max_new_tokens": (1, None, True),
    "loss_watchdog_threshold": (0, None, False),
    "loss_watchdog_patience": (1, None, True),
    "evals_per_epoch": (0, None, True),
    "saves_per_epoch": (0, None, True),
    "dataset_processes": (1, None, True),
    "ddp_timeout": (1, None, True),
    "eaft_alpha": (0, None, True),
    "eaft_k": (2, None, True),
}


def out_of_range(r: View) -> Found:
    """A number that cannot be meant: a size below one, a share above one, a negative rate."""
    for key, (least, greatest, inclusive) in RANGES.items():
        value = r[key]
        if value is None or isinstance(value, bool):
            continue
        if value < least or (value == least and not inclusive) or (greatest is not None and value > greatest):
            yield error(key, f"`{key}` must be {bounds(least, greatest, inclusive)}, got {value:g}", "")


def unknown_optimizer(r: View) -> Found:
    """The optimizer's name is none that ftkit has."""
    if r.optimizer not in OPTIMIZERS:
        yield error("optimizer", f"no optimizer is called `{r.optimizer}`", choice(r.optimizer, OPTIMIZERS))


def unknown_schedule(r: View) -> Found:
    """The schedule's name is none that ftkit has."""
    if r.lr_scheduler not in SCHEDULES:
        yield error("lr_scheduler", f"no schedule is called `{r.lr_scheduler}`", choice(r.lr_scheduler, SCHEDULES))


def learning_rate_too_high(r: View) -> Found:
    """No fine-tuning works at a learning rate near one; usually the minus of the exponent is missing."""
    if r.learning_rate >= 0.1 and r.optimizer != "sgd":
        yield warning("learning_rate", f"a learning rate of {r.learning_rate:g} destroys a model", "take 1e-5 to 1e-3")


def warmup_twice(r: View) -> Found:
    """`warmup_steps` and `warmup_ratio` both say how long the learning rate rises."""
    if r.warmup_steps and r.warmup_ratio:
        yield error("warmup_ratio", "warmup_steps and warmup_ratio say the same thing", "keep one of them")


def warmup_ratio_is_share(r: View) -> Found:
    """`warmup_ratio` is a share of the run; whole steps go into `warmup_steps`."""
    if r.warmup_ratio is not None and not 0 <= r.warmup_ratio < 1:
        help = f"write `warmup_steps: {r.warmup_ratio:g}` if steps are meant"
        yield error("warmup_ratio", f"`warmup_ratio` must be in [0, 1), got {r.warmup_ratio:g}", help)


def warmup_longer_than_run(r: View) -> Found:
    """The learning rate would still be rising when the run ends."""
    if r.max_steps and r.warmup_steps and r.warmup_steps >= r.max_steps:
        message = f"{r.warmup_steps} steps of warm-up in a run of {r.max_steps}"
        yield warning("warmup_steps", message, f"take {max(1, r.max_steps // 10)}")


def constant_with_warmup(r: View) -> Found:
    """`constant` holds the learning rate from the first step; the schedule that warms up has its own name."""
    if r.lr_scheduler == "constant" and (r.warmup_steps or r.warmup_ratio):
        key = "warmup_steps" if r.warmup_steps else "warmup_ratio"
        yield warning(key, "lr_scheduler: constant has no warm-up", "write lr_scheduler: constant_with_warmup")


def cosine_key_unused(r: View) -> Found:
    """Keys that shape the cosine, with another schedule."""
    for key in ("cosine_min_lr_ratio", "cosine_constant_lr_ratio"):
        if r[key] and not r.lr_scheduler.startswith("cosine"):
            yield warning(key, f"`{key}` has no effect with lr_scheduler: {r.lr_scheduler}", "take it out")


def cosine_constant_without_min(r: View) -> Found:
    """The constant end of a cosine stays at its lowest rate, which `cosine_min_lr_ratio` names."""
    if r.cosine_constant_lr_ratio and not r.cosine_min_lr_ratio:
        message = "`cosine_constant_lr_ratio` alone would train its last part at a learning rate of 0"
        yield error("cosine_constant_lr_ratio", message, "set cosine_min_lr_ratio: 0.1")


def adam_key_unused(r: View) -> Found:
    """Decay rates of Adam, with an optimizer of another kind."""
    for key in ("adam_beta1", "adam_beta2", "adam_epsilon"):
        if r.gives(key) and r.optimizer.removeprefix("paged_").startswith(("sgd", "adafactor", "adagrad", "rmsprop")):
            yield warning(key, f"`{key}` has no effect with optimizer: {r.optimizer}", "take it out")


def checkpointing_kwargs_unused(r: View) -> Found:
    """Options of recomputing activations, which is not turned on."""
    if r.gradient_checkpointing_kwargs and not r.gradient_checkpointing:
        message = "`gradient_checkpointing_kwargs` has no effect without gradient_checkpointing: true"
        yield warning("gradient_checkpointing_kwargs", message, "take it out, or turn recomputing on")


def checkpointing_unknown(r: View) -> Found:
    """Activations are recomputed from inputs kept on the device, or in host memory (`offload`)."""
    kind = r.gradient_checkpointing
    if isinstance(kind, str) and kind not in ("offload", "selective"):
        message = f"`gradient_checkpointing` must be true, false, selective or offload, got {kind}"
        help = "selective recomputes every second block, offload keeps the inputs of blocks in host memory"
        yield error("gradient_checkpointing", message, help)


def reentrant_twice(r: View) -> Found:
    """Two keys say whether recomputing is reentrant."""
    given = r.gradient_checkpointing_kwargs.get("use_reentrant")
    if given is not None and r.reentrant_checkpointing is not None and given != r.reentrant_checkpointing:
        message = "`reentrant_checkpointing` contradicts gradient_checkpointing_kwargs.use_reentrant"
        yield error("reentrant_checkpointing", message, "take one of them out")


def checkpointing_kwargs_unknown(r: View) -> Found:
    """The one option of recomputing that ftkit has."""
    for key in r.gradient_checkpointing_kwargs:
        if key != "use_reentrant":
            path = f"gradient_checkpointing_kwargs.{key}"
            yield error(path, f"`gradient_checkpointing_kwargs` has no `{key}`", "there is use_reentrant alone")


def activation_offloading_alone(r: View) -> Found:
    """Offloading keeps the inputs of recomputed blocks on the CPU; without recomputing there is nothing to move."""
    if r.activation_offloading and not r.gradient_checkpointing:
        message = "`activation_offloading` needs gradient_checkpointing: true"
        yield error("activation_offloading", message, "set gradient_checkpointing: true")


def eaft_key_unused(r: View) -> Found:
    """Settings of the loss weighted by entropy, which is not turned on."""
    for key in ("eaft_alpha", "eaft_k"):
        if r.gives(key) and not r.use_eaft:
            yield warning(key, f"`{key}` has no effect without use_eaft: true", "take it out, or set use_eaft: true")


def bounds(least: float, greatest: float | None, inclusive: bool) -> str:
    """A range in words: `at least 1`, `above 0`, `from 0 to 1`."""
    if greatest is not None:
        return f"from {least:g} to {greatest:.0f}"
    return f"at least {least:g}" if inclusive else f"above {least:g}"


def choice(name: str, known: object) -> str:
    """Help for a name that is not in a catalog."""
    names = list(known)  # type: ignore[call-overload]
    guess = nearest(name, names)
    return f"did you mean `{guess}`?" if guess else f"one of {', '.join(names)}"


RULES: tuple[Rule, ...] = (
    out_of_range,
    unknown_optimizer,
    unknown_schedule,
    learning_rate_too_high,
    warmup_twice,
    warmup_ratio_is_share,
    warmup_longer_than_run,
    constant_with_warmup,
    cosine_key_unused,
    cosine_constant_without_min,
    adam_key_unused,
    checkpointing_kwargs_unused,
    checkpointing_unknown,
    checkpointing_kwargs_unknown,
    reentrant_twice,
    activation_offloading_alone,
    eaft_key_unused,
)
