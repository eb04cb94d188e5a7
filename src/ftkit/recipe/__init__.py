"""The recipe language: YAML text in, a frozen `Recipe` or a list of problems out. Never imports torch."""

from ftkit.recipe.load import check_recipe, load_recipe
from ftkit.recipe.problems import InvalidRecipe, Problem
from ftkit.recipe.recipe import Recipe

__all__ = ["InvalidRecipe", "Problem", "Recipe", "check_recipe", "load_recipe"]
