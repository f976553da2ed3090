"""Self-made certificates: all replicas keep them in one Secret and rotate them without a failed request."""
