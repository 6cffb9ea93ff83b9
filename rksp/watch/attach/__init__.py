"""`rksp watch -- COMMAND`: monitors for a script that knows nothing of them."""

STOPPED = 75  # exit code of --on-alarm stop, EX_TEMPFAIL: a scheduler may try again
