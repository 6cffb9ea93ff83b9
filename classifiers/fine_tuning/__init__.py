"""The model of fine-tuning: from trained weights and a recipe to rates, without numpy or torch."""
