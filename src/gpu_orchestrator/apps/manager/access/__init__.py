"""What each key may do, and how much: keys, limits, quotas, rate limits, the audit log."""
