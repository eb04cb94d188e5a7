"""Where a run is reported to."""

from typing import Literal

from ftkit.recipe.section.base import Field, Section
from ftkit.recipe.section.frozen import FrozenMap


class TrackingSection(Section):
    """Trackers."""

    wandb_project: str | None = Field(default=None, description="W&B project.")
    wandb_entity: str | None = Field(default=None, description="W&B team.")
    wandb_name: str | None = Field(default=None, description="W&B run name.")
    wandb_run_id: str | None = Field(default=None, description="W&B run id.")
    wandb_watch: bool | str | None = Field(default=None, description="What W&B watches.")
    wandb_log_model: bool | str | None = Field(default=None, description="Whether W&B stores the model.")
    use_tensorboard: bool = Field(default=False, description="Write TensorBoard files.")
    use_wandb: bool | None = Field(
        default=None, description="Report to W&B; false turns it off whatever the other keys say."
    )
    wandb_mode: Literal["online", "offline", "disabled"] | None = Field(
        default=None, description="Whether W&B sends, stores or does nothing."
    )
    mlflow_tracking_uri: str | None = Field(default=None, description="Address or folder of MLflow.")
    mlflow_experiment_name: str | None = Field(default=None, description="MLflow experiment.")
    mlflow_run_name: str | None = Field(default=None, description="MLflow run.")
    hf_mlflow_log_artifacts: bool | None = Field(default=None, description="Let MLflow store the files of the run.")
    use_comet: bool = Field(default=False, description="Report to Comet.")
    comet_api_key: str | None = Field(default=None, description="Comet key.")
    comet_workspace: str | None = Field(default=None, description="Comet workspace.")
    comet_project_name: str | None = Field(default=None, description="Comet project.")
    comet_experiment_key: str | None = Field(default=None, description="Comet experiment.")
    comet_mode: str | None = Field(default=None, description="Comet mode.")
    comet_online: bool | None = Field(default=None, description="Send to Comet during the run.")
    comet_experiment_config: FrozenMap = Field(default_factory=FrozenMap, description="Further options of Comet.")
    trackio_project_name: str | None = Field(default=None, description="Trackio project.")
    trackio_run_name: str | None = Field(default=None, description="Trackio run.")
    trackio_space_id: str | None = Field(default=None, description="Trackio space.")
