"""What the lab trains on: synthetic, textual and visual tasks, and domains to move between."""
