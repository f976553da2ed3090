"""Sessions of workers: connections, messages, leases."""
