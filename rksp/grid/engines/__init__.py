"""Where groups of cells are worked on; see `rksp.grid.engines.base`."""
