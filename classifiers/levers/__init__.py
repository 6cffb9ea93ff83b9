"""What would raise the edge: the changes that were measured, their sizes and their prices."""
