"""Requests and responses on the wire: HTTP, JSON, URLs."""
