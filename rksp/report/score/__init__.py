"""The renderings of a score."""
