"""Published experiments again: a table of their settings, one runner and one renderer."""
