"""The committed experiments, as plans of trials; `rksp reproduce` runs them."""
