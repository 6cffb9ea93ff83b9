"""What rksp says, as records: the parts of the documents of `score`, `confirm` and `grid`."""
