"""Grids: many targets and recipes, each distinct initialization profiled once."""
