"""Interventions: one a file; they change a run and log what they did."""
