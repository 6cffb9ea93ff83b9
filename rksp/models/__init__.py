"""Getting a model from what the user typed, and finding its residual stream."""

from rksp.models.anatomy.chains import Chain, find_chains
from rksp.models.resolve import MAX_PARAMS, resolve, resolve_tiny
from rksp.models.source import ModelSource

__all__ = ["MAX_PARAMS", "Chain", "ModelSource", "find_chains", "resolve", "resolve_tiny"]
