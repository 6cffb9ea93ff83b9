"""Interventions, one a file: they change a run and record their actions."""
