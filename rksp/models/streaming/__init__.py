"""Stream models that are never whole in memory: load, use and drop weights unit by unit."""
