"""Everything else."""

from ftkit.recipe.section.base import Field, Section


class GeneralSection(Section):
    """Strictness and debugging."""

    strict: bool = Field(
        default=False, description="Refuse what this machine cannot honour, instead of substituting it."
    )
    debug: bool | None = Field(default=None, description="More output.")
    local_rank: int | None = Field(default=None, description="Set by launchers; ignored.")
