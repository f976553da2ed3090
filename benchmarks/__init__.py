"""Benchmarks: a script for each claim about speed. It prints a table, then one last line of JSON."""
