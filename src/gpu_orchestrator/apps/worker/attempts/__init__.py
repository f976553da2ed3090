"""Attempts of tasks on this worker: waiting, running, ended."""
