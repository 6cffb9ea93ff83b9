"""Confirm: a short monitored run, or several arms side by side, against the prediction."""
