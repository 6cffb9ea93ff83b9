"""Monitors in other trainers: one file a trainer, the same names everywhere."""
