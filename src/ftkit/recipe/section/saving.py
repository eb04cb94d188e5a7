"""What is written, where and when."""

from typing import Literal

from ftkit.recipe.section.base import Field, Section


class SavingSection(Section):
    """Output folder and checkpoints."""

    output_dir: str = Field(default="./model-out", description="Folder of the run.")
    save_steps: int | float | None = Field(default=None, description="Steps, or share of the run, between checkpoints.")
    saves_per_epoch: int | None = Field(default=None, description="Checkpoints an epoch.")
    save_strategy: Literal["steps", "epoch", "no", "best"] | None = Field(default=None, description="When to save.")
    save_total_limit: int | None = Field(default=None, description="Checkpoints kept.")
    save_safetensors: bool | None = Field(default=None, description="Always true here.")
    resume_from_checkpoint: bool | str | None = Field(
        default=None, description="A checkpoint, or true for the newest whole one."
    )
    auto_resume_from_checkpoints: bool | None = Field(
        default=None, description="Resume from the newest checkpoint if there is one."
    )
    save_only_model: bool = Field(default=False, description="Leave the optimizer out of checkpoints.")
    load_best_model_at_end: bool = Field(default=False, description="Export the checkpoint with the best metric.")
    metric_for_best_model: str | None = Field(default=None, description="Which metric that is.")
    greater_is_better: bool | None = Field(default=None, description="Whether a larger one is better.")
