"""Where the parts of a model are: chains of blocks, attention, routers, norms, weights."""
