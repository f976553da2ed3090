"""Nouns and one verb: what a cluster is, what a request asks, and `decide`. Pure: no clock, no log, no IO."""
