"""The act of scoring: evidence, answer, report."""
