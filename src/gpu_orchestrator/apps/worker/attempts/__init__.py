"""Attempts at tasks on this worker: waiting, running, ended."""
