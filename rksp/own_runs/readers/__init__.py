"""Readers of past runs, one file a format."""
