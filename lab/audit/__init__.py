"""The checks over public runs."""
