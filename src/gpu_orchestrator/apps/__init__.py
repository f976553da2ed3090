"""One folder per process. Siblings never import each other."""
