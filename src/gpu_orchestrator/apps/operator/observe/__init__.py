"""What the operator knows of the cluster: watches, free capacity, and a snapshot of each workload."""
