"""The report: its schema, its construction, and one file per rendering."""
