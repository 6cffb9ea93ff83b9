"""What a model shows before it trains: snapshots, forward statistics and response."""
