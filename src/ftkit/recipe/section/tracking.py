"""Where a run is reported to."""

from __future__ import annotations

from pydantic import Field

from ftkit.recipe.section.base import Section


class TrackingSection(Section):
    """Trackers."""

    wandb_project: str | None = Field(default=None, description="W&B project.")
    wandb_entity: str | None = Field(default=None, description="W&B team.")
    wandb_name: str | None = Field(default=None, description="W&B run name.")
    wandb_run_id: str | None = Field(default=None, description="W&B run id.")
    wandb_watch: str | None = Field(default=None, description="What W&B watches.")
    wandb_log_model: str | None = Field(default=None, description="Whether W&B stores the model.")
    use_tensorboard: bool = Field(default=False, description="Write TensorBoard files.")
