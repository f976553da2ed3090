"""The store: a real Valkey or Redis that decides every race by a script, and is the one truth about tasks."""
