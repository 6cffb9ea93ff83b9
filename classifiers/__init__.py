"""The divergence classifier: fit, calibration, evaluation, and the shipped artifact."""
