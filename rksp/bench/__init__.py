"""Measurements of rksp on this machine: what `rksp bench` runs."""
