"""The folder that `rksp watch` puts before Python's path: it holds `sitecustomize` alone."""
