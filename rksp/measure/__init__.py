"""Measure a model before it trains: snapshots, forward statistics and the first gradient."""
