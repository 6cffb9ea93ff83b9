"""`rksp watch -- COMMAND`: monitors for a script that knows nothing of them."""
