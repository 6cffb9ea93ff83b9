"""The documents of `score`, `confirm` and `grid` and their parts, as records."""
