"""Fine-tune language models from one YAML recipe.

`load_recipe` reads and checks a recipe; the `ftkit` command does everything else.
"""

from ftkit.recipe import Recipe, load_recipe

__version__ = "0.1.0"
__all__ = ["Recipe", "__version__", "load_recipe"]
