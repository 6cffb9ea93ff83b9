"""Measure a model before it trains: snapshots, forward statistics, response, range test."""
