"""The registry of models: this process's copy of it, and what the leader learns from reports."""
