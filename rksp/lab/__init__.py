"""The lab: labelled training runs, made in ladders of learning rates."""
