"""The document of a grid and its renderings."""
