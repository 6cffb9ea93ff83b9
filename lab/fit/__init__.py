"""How the model of the edge is fitted and evaluated."""
