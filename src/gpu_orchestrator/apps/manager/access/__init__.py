"""Who may do what, and how much: keys, limits, quotas, rates, the audit log."""
