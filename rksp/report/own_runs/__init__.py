"""Renderings of past runs."""
