"""Reproductions of published experiments: a table of settings, one runner and one renderer."""
