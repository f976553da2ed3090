"""Workers and their devices as values: rows of the store, nodes of the core."""
