"""What every section of a recipe has in common.

A section is a frozen pydantic model whose fields carry the YAML keys' own names (`model_config`, which pydantic
reserves, is `config_overrides` with that alias). Lists are tuples and mappings are `FrozenMap`, so that a recipe is
hashable. A field's description is the one source of docs/recipe.md and of the JSON schema. The section files do without
`from __future__ import annotations`: pydantic would have to evaluate each annotation again, at every `ftkit check`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys; numbers are taken as text where text is wanted."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        defer_build=True,  # fit.py checks recipes; validators are built only when Python code makes a section
        populate_by_name=True,
        coerce_numbers_to_str=True,
    )
