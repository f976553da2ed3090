"""Events for those who watch: the feed, history, signed callbacks."""
