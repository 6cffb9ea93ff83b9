"""List and make the optimizers that a recipe can name; only making one needs torch."""
