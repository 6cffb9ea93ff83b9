"""Pruning by risk before a trial trains, inside other people's sweeps."""
