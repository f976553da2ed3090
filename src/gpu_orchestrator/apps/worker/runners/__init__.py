"""Runner processes: the pool, one handle each, the keeper above them, the runner itself."""
