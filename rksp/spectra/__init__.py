"""The spectra of the residual stream: whitened dynamic mode decomposition and what it tells."""
