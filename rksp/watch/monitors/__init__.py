"""Monitors, one a file: they observe a run and never change it."""
