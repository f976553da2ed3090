"""Which devices a node would offer. One small file each."""
