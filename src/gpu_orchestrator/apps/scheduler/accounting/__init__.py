"""What is held on which node: by pods, by leases, by device plugins."""
