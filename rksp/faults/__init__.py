"""Faults: one a file; known defects that prove what the monitors see."""
