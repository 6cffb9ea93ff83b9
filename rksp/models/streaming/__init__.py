"""Models that are never whole in memory: weights drawn or read, used and dropped, unit by unit."""
