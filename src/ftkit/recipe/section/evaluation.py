"""When and on what is evaluated."""

from typing import Literal

from ftkit.recipe.section.base import Field, Section


class EvaluationSection(Section):
    """Evaluation during the run."""

    eval_steps: int | float | None = Field(default=None, description="Steps, or share of the run, between evaluations.")
    evals_per_epoch: int | None = Field(default=None, description="Evaluations an epoch.")
    eval_strategy: Literal["steps", "epoch", "no"] | None = Field(default=None, description="When to evaluate.")
    eval_on_start: bool = Field(default=False, description="Evaluate before the first step.")
    early_stopping_patience: int | None = Field(
        default=None, description="Evaluations without improvement before the run ends."
    )
    loss_watchdog_threshold: float | None = Field(default=None, description="Loss above which the run is in trouble.")
    loss_watchdog_patience: int | None = Field(default=None, description="Steps in trouble before the run stops.")
    eval_table_size: int | None = Field(default=None, description="Generations shown.")
    eval_max_new_tokens: int = Field(default=128, description="Longest generation.")
