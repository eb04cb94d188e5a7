"""The sections of a recipe: frozen values that the other parts may take as parameters."""
