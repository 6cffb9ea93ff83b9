"""Checks: named findings about a configuration, each with its number and the smallest fix."""
