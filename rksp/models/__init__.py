"""Where models come from: targets by name, configuration, checkpoint or factory; and the zoo."""

from rksp.models.resolve import ModelSource, resolve

__all__ = ["ModelSource", "resolve"]
