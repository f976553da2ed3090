"""Schedules: when their tasks are to run, and the leader's chore of queueing those whose moment has come."""
