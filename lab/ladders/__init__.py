"""Run the lab: labelled training runs in ladders of learning rates."""
