"""Ladders of fine-tuning: models that learned something first, then trained on something else."""
