"""What clients can follow: the feed of events, the history of metrics, and signed callbacks."""
