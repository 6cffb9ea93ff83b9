"""The model of the edge: fit, evaluation, and the shipped artifact."""
