"""Resolve what the user typed to a model, and find its residual stream."""
