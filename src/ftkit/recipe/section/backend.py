"""How a run is spread over processes."""

from ftkit.recipe.section.base import Field, Section
from ftkit.recipe.section.frozen import FrozenMap


class BackendSection(Section):
    """DeepSpeed, FSDP, DDP."""

    deepspeed: str | FrozenMap | None = Field(default=None, description="DeepSpeed configuration: file or mapping.")
    fsdp: tuple[str, ...] = Field(default=(), description="FSDP options.")
    fsdp_config: FrozenMap = Field(default_factory=FrozenMap, description="FSDP settings.")
    fsdp_version: int | None = Field(default=None, description="FSDP version.")
    ddp_timeout: int | None = Field(
        default=None, description="Seconds without progress on any rank before the run ends (1800 on several)."
    )
    dp_shard_size: int | None = Field(default=None, description="Processes that share one copy of the weights.")
    dp_replicate_size: int | None = Field(default=None, description="Such copies.")
