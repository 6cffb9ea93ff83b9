"""Compute spectra of the residual stream by whitened dynamic mode decomposition."""
