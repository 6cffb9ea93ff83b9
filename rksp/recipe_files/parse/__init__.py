"""A run file as data: parsed, never executed."""
