"""What a score costs on this machine: `rksp bench score`."""
