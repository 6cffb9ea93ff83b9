"""Tasks and corpora to probe and train on, the plans of the lab, and its labelled runs."""
