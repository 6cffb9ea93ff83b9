"""Recipes from the files that start trainers; see `rksp.recipe_files.registry`."""
