"""Events in, actions out: the engine keeps the cluster's state and the queue, and calls `decide`. Pure; `now`
is an argument."""
