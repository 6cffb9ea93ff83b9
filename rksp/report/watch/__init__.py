"""The renderings of a watched run."""
