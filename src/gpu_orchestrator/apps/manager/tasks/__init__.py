"""Tasks from submission to outcome, apart from placing them."""
