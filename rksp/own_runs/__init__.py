"""What a team has already trained: its runs read, labelled, and learned from."""
