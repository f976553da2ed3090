"""Events in, actions out: remembers the cluster, keeps the queue, calls `decide`. Pure; `now` is an
argument."""
