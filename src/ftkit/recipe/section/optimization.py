"""Optimizer and learning rate."""

from ftkit.recipe.section.base import Field, Section
from ftkit.recipe.section.frozen import FrozenMap


class OptimizationSection(Section):
    """Optimizer, schedule, weight decay."""

    optimizer: str = Field(default="adamw_torch", description="Name of the optimizer.")
    learning_rate: float = Field(default=2e-4, description="Peak learning rate.")
    lr_scheduler: str = Field(default="cosine", description="Name of the schedule.")
    lr_scheduler_kwargs: FrozenMap = Field(default_factory=FrozenMap, description="Options of the schedule.")
    warmup_steps: int | None = Field(default=None, description="Steps of linear warm-up.")
    warmup_ratio: float | None = Field(default=None, description="The same as a share of the run.")
    cosine_min_lr_ratio: float | None = Field(
        default=None, description="Lowest rate of a cosine, as a share of the peak."
    )
    cosine_constant_lr_ratio: float | None = Field(
        default=None, description="Share of the run after which the rate stays."
    )
    weight_decay: float = Field(default=0.0, description="Decoupled weight decay.")
    adam_beta1: float = Field(default=0.9, description="Decay of the first moment.")
    adam_beta2: float = Field(default=0.999, description="Decay of the second moment.")
    adam_epsilon: float = Field(default=1e-8, description="Epsilon.")
    optim_args: FrozenMap = Field(default_factory=FrozenMap, description="Further options of the optimizer.")
