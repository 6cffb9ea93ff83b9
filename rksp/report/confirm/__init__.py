"""The renderings of a confirmation."""
