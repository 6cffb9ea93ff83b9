"""Fit and evaluate the model of fine-tuning; nothing here is needed to answer."""
