"""Watched objects: a live copy of each kind, kept by a watch, with our own writes on top."""
