"""The leader and its dispatcher, which decide the worker and the time for each task."""
