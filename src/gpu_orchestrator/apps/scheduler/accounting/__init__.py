"""What is held on each node: by pods, by leases and by device plugins."""
