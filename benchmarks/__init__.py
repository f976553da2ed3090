"""Each claim of speed is a script anyone can run again: a table, then one last line of JSON."""
