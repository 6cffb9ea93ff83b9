"""Named checks of a configuration; each finding has a number and the smallest fix."""
