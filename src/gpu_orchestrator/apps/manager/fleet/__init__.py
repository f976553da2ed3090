"""Workers and their devices as values: from rows of the store to nodes of the core."""
