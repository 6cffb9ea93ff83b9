"""Prune risky trials of other sweepers before they train."""
