"""Sessions with workers: connections, messages, leases."""
