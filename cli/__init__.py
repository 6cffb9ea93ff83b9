"""The command line: a command parses, calls the library, renders."""

from rksp.ground.allocator import loading

with loading():
    from rksp.cli.app import app, main

__all__ = ["app", "main"]
