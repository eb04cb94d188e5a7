"""Fine-tune language models from one YAML recipe.

`load_recipe` reads and checks a recipe; the `ftkit` command does everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftkit.recipe import Recipe, load_recipe

__version__ = "0.1.0"
__all__ = ["Recipe", "__version__", "load_recipe"]


def __getattr__(name: str) -> Any:
    """Import the recipe language when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'ftkit' has no attribute {name!r}")
    from ftkit import recipe

    return getattr(recipe, name)
