"""What is known of each field: who set it, and what was assumed."""
