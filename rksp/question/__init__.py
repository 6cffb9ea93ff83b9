"""The room of the question: a run, its terms, and the finished answer."""
