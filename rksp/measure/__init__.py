"""What a model shows before it trains: snapshots, forward statistics, response, range test."""
