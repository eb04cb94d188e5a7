"""Rules about when a run evaluates, saves, stops early and generates."""

from __future__ import annotations

from ftkit.recipe.rule.base import Found, Rule, View, error, warning


def nothing_to_evaluate(r: View) -> Found:
    """Evaluation is asked for, and no row is held out to evaluate on."""
    given = [key for key in ("evals_per_epoch", "eval_steps", "eval_on_start") if r[key]]
    if r.eval_strategy in ("steps", "epoch"):
        given.insert(0, "eval_strategy")
    if given and not evaluates_on(r):
        yield warning(
            given[0], f"`{given[0]}` has no effect: there is nothing to evaluate on", "set val_set_size: 0.05"
        )


def early_stopping_without_evaluation(r: View) -> Found:
    """Stopping early watches the evaluation loss, of which this run has none."""
    if r.early_stopping_patience and not (evaluates_on(r) and r.eval_strategy != "no"):
        message = "early stopping watches the evaluation loss, and nothing is evaluated"
        yield error("early_stopping_patience", message, "set val_set_size: 0.05, or take it out")


def eval_interval_twice(r: View) -> Found:
    """`eval_steps` and `evals_per_epoch` both say how often to evaluate."""
    if r.eval_steps and r.evals_per_epoch:
        yield error("evals_per_epoch", "eval_steps and evals_per_epoch say the same thing", "keep one of them")


def save_interval_twice(r: View) -> Found:
    """`save_steps` and `saves_per_epoch` both say how often to save."""
    if r.save_steps and r.saves_per_epoch:
        yield error("saves_per_epoch", "save_steps and saves_per_epoch say the same thing", "keep one of them")


def eval_strategy_contradicts(r: View) -> Found:
    """`eval_strategy` says otherwise than the interval beside it."""
    interval = "eval_steps" if r.eval_steps else "evals_per_epoch"
    if r[interval] and (r.eval_strategy == "no" or (r.eval_strategy == "epoch" and interval == "eval_steps")):
        message = f"eval_strategy: {r.eval_strategy} contradicts {interval}: {r[interval]}"
        yield error("eval_strategy", message, "keep one of the two keys")


def save_strategy_contradicts(r: View) -> Found:
    """`save_strategy` says otherwise than the interval beside it."""
    interval = "save_steps" if r.save_steps else "saves_per_epoch"
    if r[interval] and (r.save_strategy == "no" or (r.save_strategy == "epoch" and interval == "save_steps")):
        message = f"save_strategy: {r.save_strategy} contradicts {interval}: {r[interval]}"
        yield error("save_strategy", message, "keep one of the two keys")


def steps_without_interval(r: View) -> Found:
    """A strategy of steps needs the number of steps."""
    for strategy, steps in (("eval_strategy", "eval_steps"), ("save_strategy", "save_steps")):
        if r[strategy] == "steps" and not r[steps] and not r[steps.replace("_steps", "s_per_epoch")]:
            yield error(strategy, f"{strategy}: steps needs {steps}", f"set {steps}: 100, or a share such as 0.1")


def interval_is_share(r: View) -> Found:
    """An interval is a whole number of steps, or a share of the run between 0 and 1."""
    for key in ("eval_steps", "save_steps", "logging_steps"):
        value = r[key]
        if value is not None and (
            value < 0 or (value > 1 and value != int(value)) or (key == "logging_steps" and not value)
        ):
            yield error(key, f"`{key}` is steps (whole) or a share below 1, got {value:g}", "")


def best_without_evaluation(r: View) -> Found:
    """The best checkpoint is the one with the lowest evaluation loss, of which this run has none."""
    if (r.save_strategy == "best" or r.load_best_model_at_end) and not (evaluates_on(r) and r.eval_strategy != "no"):
        key = "save_strategy" if r.save_strategy == "best" else "load_best_model_at_end"
        message = "the best checkpoint is chosen by the evaluation loss, and nothing is evaluated"
        yield error(key, message, "set val_set_size: 0.05")


def best_metric_unused(r: View) -> Found:
    """A metric to choose the best checkpoint by, which nobody chooses."""
    for key in ("metric_for_best_model", "greater_is_better"):
        if r.gives(key) and not (r.save_strategy == "best" or r.load_best_model_at_end or r.early_stopping_patience):
            yield warning(key, f"`{key}` has no effect: no best checkpoint is asked for", "take it out")


def best_must_be_saved(r: View) -> Found:
    """Only a checkpoint that was saved right at an evaluation can be the best one."""
    if r.load_best_model_at_end and r.save_steps and r.eval_steps and r.save_steps % r.eval_steps:
        message = f"checkpoints every {r.save_steps:g} steps do not meet evaluations every {r.eval_steps:g}"
        yield error("save_steps", message, f"take a multiple of {r.eval_steps:g}")


def resume_said_twice(r: View) -> Found:
    """A named checkpoint to resume from, and the newest one at the same time."""
    if isinstance(r.resume_from_checkpoint, str) and r.auto_resume_from_checkpoints:
        message = "resume_from_checkpoint names one checkpoint, auto_resume_from_checkpoints takes the newest"
        yield error("auto_resume_from_checkpoints", message, "keep one of them")


def unsafe_files(r: View) -> Found:
    """Pickled weights run code when they are read; ftkit writes safetensors only."""
    if r.save_safetensors is False:
        yield warning("save_safetensors", "weights are written as safetensors all the same", "take it out")


def watchdog_half_set(r: View) -> Found:
    """The watchdog stops a run whose loss stays above a threshold for some steps; a patience alone watches nothing."""
    if r.loss_watchdog_patience and not r.loss_watchdog_threshold:
        message = "`loss_watchdog_patience` has no effect without loss_watchdog_threshold"
        yield warning("loss_watchdog_patience", message, "set loss_watchdog_threshold: 5.0, or take it out")


def table_without_evaluation(r: View) -> Found:
    """Generations are shown at each evaluation, of which there is none."""
    if r.eval_table_size and not evaluates_on(r):
        message = "`eval_table_size` has no effect: there is nothing to evaluate on"
        yield warning("eval_table_size", message, "set val_set_size: 0.05, or take it out")


def evaluates_on(r: View) -> bool:
    """Whether there are rows to evaluate on."""
    return bool(r.val_set_size or r.test_datasets)


RULES: tuple[Rule, ...] = (
    nothing_to_evaluate,
    early_stopping_without_evaluation,
    eval_interval_twice,
    save_interval_twice,
    eval_strategy_contradicts,
    save_strategy_contradicts,
    steps_without_interval,
    interval_is_share,
    best_without_evaluation,
    best_metric_unused,
    best_must_be_saved,
    resume_said_twice,
    unsafe_files,
    watchdog_half_set,
    table_without_evaluation,
)
