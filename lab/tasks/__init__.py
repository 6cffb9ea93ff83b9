"""What the lab trains on: synthetic, textual and visual tasks."""
