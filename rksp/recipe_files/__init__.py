"""Recipes from the files that trainers are started with; see `rksp.recipe_files.registry`."""
