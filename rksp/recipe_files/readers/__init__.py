"""One reader for each trainer's files."""
