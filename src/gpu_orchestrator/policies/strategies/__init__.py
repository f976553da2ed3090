"""Which offer is best. One small file each."""
