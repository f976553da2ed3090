"""From a snapshot of one workload to a plan: what to write next, and what its status becomes."""
