"""Faults that rksp must survive: damaged input, kills, full disks, and runs that must not differ.

Run as `python -m lab.faults COMMAND`. The modules import each other as `faults.*`.
"""
