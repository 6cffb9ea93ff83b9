"""The report: its schema, how it is built, and its renderings, one a file."""
