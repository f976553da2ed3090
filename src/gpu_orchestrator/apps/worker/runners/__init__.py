"""Runner processes: the pool, a handle for each runner, the keeper that is its parent, the runner itself."""
