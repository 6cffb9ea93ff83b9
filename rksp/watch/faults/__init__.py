"""Faults, one a file: known defects that test what the monitors see."""
