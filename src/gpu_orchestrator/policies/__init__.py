"""Named strategies and allocators. One small file each, one line in the registry."""
