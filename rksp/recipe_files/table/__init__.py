"""What readers are made of: a draft of a recipe, and rows that fill it."""
