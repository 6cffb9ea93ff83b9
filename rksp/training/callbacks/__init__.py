"""The monitors in other people's trainers: one file a trainer, the same names everywhere."""
