"""What Python calls: scores, fixes and trials of runs to come, and why past runs ended."""
