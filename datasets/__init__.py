"""Hold probe and training tasks, corpora, the plans of the lab and its labelled runs."""
