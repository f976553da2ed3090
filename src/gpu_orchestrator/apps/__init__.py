"""One folder per process; siblings never import each other."""
