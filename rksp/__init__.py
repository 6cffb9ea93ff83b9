"""The pre-flight check of a training run."""
