"""Formats that other programs read."""
