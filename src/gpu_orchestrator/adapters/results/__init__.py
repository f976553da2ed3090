"""Results that are too large for the store: as files in a folder, or as objects of an S3-compatible store."""
