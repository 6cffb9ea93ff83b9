"""What everything stands on: errors, text, files, flags and processes."""
