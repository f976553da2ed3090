"""The leader and its dispatcher: which task goes to which worker, and when."""
