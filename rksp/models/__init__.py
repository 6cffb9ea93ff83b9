"""Getting a model from what the user typed, and finding its residual stream."""
