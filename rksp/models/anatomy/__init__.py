"""Locate the parts of a model: chains of blocks, attention, routers, norms, weights."""
