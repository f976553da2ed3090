"""Tasks from submission to outcome, except their placement."""
