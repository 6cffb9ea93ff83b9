"""What Python calls: the score of a run to come, and why past runs ended as they did."""
