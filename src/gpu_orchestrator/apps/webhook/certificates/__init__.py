"""Self-made certificates: kept in one Secret by all replicas together, and rotated without a failed request."""
